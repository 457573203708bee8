"""A coordinator that differs from others in one respect: `coordinators.py lifted|two-hosts FLAGS`.

`lifted` has no limits per host: what they would refuse can then be measured, although all callers
are on one host. `two-hosts` listens on 127.0.0.1 and on ::1, which it takes for two hosts: what one
of them uses up, the other still has.
"""

from __future__ import annotations

import sys
from typing import Any

from rallypoint.cli.main import coordinator
from rallypoint.server import serve
from rallypoint.server.contract import limits
from rallypoint.wire.listening import bind

MANY = 1_000_000


def bind_both(server: Any, address: str, credentials: Any = None) -> int:
    """Listen at the address, and at the same port of ::1; return the port."""
    return bind(server, f"[::1]:{bind(server, address, credentials)}", credentials)


if __name__ == "__main__":
    if sys.argv.pop(1) == "lifted":
        limits.WATCHERS_PER_JOB_MAX = limits.WATCHERS_PER_HOST_MAX = MANY
        limits.STREAMS_PER_HOST_MAX = limits.SESSIONS_AT_ONCE_MAX = limits.JOBS_PER_HOST_MAX = MANY
        limits.NEW_RUNS_AT_ONCE_MAX = MANY
    else:
        serve.bind = bind_both  # type: ignore[attr-defined]
    sys.exit(coordinator())
