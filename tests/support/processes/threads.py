"""A machine on which no thread can be started any more."""

from __future__ import annotations

import threading

import pytest


def forbid_threads(patch: pytest.MonkeyPatch) -> None:
    """Let every start of a thread fail, as at a limit of processes."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", refuse)
