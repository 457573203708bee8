"""While this process is a subreaper: from its first helper to the end of the last one."""

from __future__ import annotations

import threading

from rallypoint.agent.helper.descendants import (
    PR_SET_CHILD_SUBREAPER,
    become_subreaper,
    is_subreaper,
    prctl,
)

_subreaping = threading.Lock()
_holders = 0  # programs' parts that need this process to be a subreaper
_was_subreaper = False  # before the first of them


def hold_subreaper() -> None:
    """Make this process the new parent of the orphans of its helpers, until all let go of it."""
    global _holders, _was_subreaper
    with _subreaping:
        if not _holders:
            _was_subreaper = is_subreaper()
            become_subreaper()
        _holders += 1


def release_subreaper() -> None:
    """Let go: the last one restores what was before.

    A program that stayed a subreaper would become the parent of processes that it does not know,
    and would never reap them.
    """
    global _holders
    with _subreaping:
        _holders -= 1
        if not _holders and not _was_subreaper:
            prctl(PR_SET_CHILD_SUBREAPER, 0)
