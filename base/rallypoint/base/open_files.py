"""How many files this process may open, and how many it might when it started."""

from __future__ import annotations

import resource

FILES_MAX = 1_048_576
"""Open files that a process gets where the system has no limit; Linux allows no more by default."""

_first: tuple[int, int] | None = None


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have.

    The usual soft limit is 1,024. A single host could use that up with idle connections to a
    coordinator, and an agent has several pipes for each worker.
    """
    global _first
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _first = _first or (soft, hard)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):  # the system has a lower limit than it says
            pass


def get_first_limits() -> tuple[int, int]:
    """Return the soft and the hard limit that this process had when it started."""
    return _first or resource.getrlimit(resource.RLIMIT_NOFILE)
