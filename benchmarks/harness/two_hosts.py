"""A coordinator that listens on 127.0.0.1 and on ::1, so that callers on one machine are two hosts.

Limits hold for each host: what one of them uses up, the other still has.
"""

from __future__ import annotations

import sys
from typing import Any

from rallypoint.cli.main import coordinator
from rallypoint.server import serve
from rallypoint.wire.listening import bind


def bind_both(server: Any, address: str, credentials: Any = None) -> int:
    """Listen at the address, and at the same port of ::1; return the port."""
    return bind(server, f"[::1]:{bind(server, address, credentials)}", credentials)


if __name__ == "__main__":
    serve.bind = bind_both  # type: ignore[attr-defined]
    sys.exit(coordinator())
