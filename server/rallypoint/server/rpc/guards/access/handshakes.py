"""Counts connections on which no call has come.

gRPC says nothing about a handshake that fails: neither who has connected nor why. What is known is
how many handshakes have begun, and which connections have made calls. So the log has the
difference, once a minute. A probe that only connects is in it, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rallypoint.base.log import get_logger

log = get_logger()

MINUTE_S = 60.0


class Handshakes:
    """Handshakes and the connections that came of them."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """Begin; `clock_s` returns monotonic time."""
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._begun = 0
        self._called = 0
        """Handshakes that need no explanation any more: a call came, or the log has them."""
        self._peers: dict[str, float] = {}
        """When the last call came, for each connection with calls in the last minutes. An address
        is used again some time."""
        self._pending = 0
        """Handshakes without a call at the last look: some may still have been going on."""
        self._looked_s = clock_s()

    def note_begun(self) -> None:
        """Note that a handshake begins; gRPC's threads call this."""
        with self._lock:
            self._begun += 1

    def note_call(self, peer: str) -> None:
        """Note that a call has come on a connection; `peer` has its address and port."""
        if peer not in self._peers:
            self._called += 1
        self._peers[peer] = self._clock_s()

    def note_probe(self) -> None:
        """Note that this process has connected to itself, and makes no call."""
        self._called += 1

    def look(self) -> None:
        """Log how many connections have made no call, once a minute."""
        now_s = self._clock_s()
        if now_s - self._looked_s < MINUTE_S:
            return
        self._looked_s = now_s
        pending = self._begun - self._called
        unused = max(0, min(pending, self._pending))
        if unused:
            log.warning(
                "connections_unused",
                count=unused,
                hint="no certificate, or one of another authority, or no TLS; or only a probe",
            )
        self._called += min(pending, unused)  # below 0: old connections have called again
        self._pending = max(0, pending - unused)
        self._peers = {
            peer: last_s for peer, last_s in self._peers.items() if now_s - last_s < 2 * MINUTE_S
        }
