"""Ports for the store of rank 0, reserved before the round that uses them.

A node reserves the port, but another process opens the store: the worker with rank 0.
"""

from __future__ import annotations

import socket
from collections import deque

PORTS_KEPT = 64
"""Rounds for which a port stays reserved, so that a late worker of an old round finds no store."""


class PortReserver:
    """Reserves ports. The kernel assigns a reserved port to no other process.

    A port bound without SO_REUSEADDR belongs to this process alone. The option is set after the
    bind, so that the store of rank 0, which sets it too, can listen on the reserved port. A fixed
    port is bound with the option: connections of an earlier run may linger in TIME_WAIT.
    """

    def __init__(self, chosen: int = 0) -> None:
        """Reserve the fixed port, if there is one.

        Args:
            chosen: the fixed port, 1 to 65535; 0: a new free port each time.

        Raises:
            OSError: another process has the fixed port.
        """
        self._kept: deque[socket.socket] = deque()
        self._chosen = chosen
        if chosen:
            self._keep(chosen, is_shared=True)

    def reserve(self) -> int:
        """Return the fixed port, or one that differs from the last PORTS_KEPT."""
        if self._chosen:
            return self._chosen
        port = self._keep(0, is_shared=False)
        while len(self._kept) > PORTS_KEPT:
            self._kept.popleft().close()
        return port

    def _keep(self, wanted: int, *, is_shared: bool) -> int:
        kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(is_shared))
            kept.bind(("", wanted))
        except OSError:
            kept.close()
            raise
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.append(kept)
        port: int = kept.getsockname()[1]
        return port

    def close(self) -> None:
        """Release all ports."""
        while self._kept:
            self._kept.pop().close()
