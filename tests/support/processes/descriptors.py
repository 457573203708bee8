"""The descriptors of the process that runs the tests."""

from __future__ import annotations

import os


def list_open() -> set[tuple[str, str]]:
    """Return all of them, each with what it is.

    `list_open() - before` has what was opened since and is still open. Their number would say less:
    threads of gRPC close at any moment what earlier tests have opened.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:  # that of the listing itself, or it was closed just now
            pass
    return found
