"""Notes connections that end without a call: their audit lines.

gRPC says nothing about a handshake that fails. What is known is when one begins, who is connected
then, and who makes calls. A connection that has ended without any was refused in its handshake, or
was a probe that only connects. Its peer is known unless so many connect at once that there is no
time to look: then there is a line with their number.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from rallypoint.server.rpc.guards.access.sockets import Peer, find_peers, read_peer, show_peer

MINUTE_S = 60.0
"""Pause between two lines about connections whose peer is not known; and how long a peer that has
called and left is remembered: its last call may be served late."""
FIND_SHARE_MAX = 0.02
"""Share of the time that may be spent on finding out who is connected."""
FIND_S_MAX = 0.2
"""Time for it that may be saved up: so the peers of some hundreds of handshakes in a row are known,
or of a few when there are 16,384 connections."""
FEW = 16
"""With so many connections, every handshake that begins is a reason to look."""
PAUSE_S = 50e-6
"""Pause before the next such look for each connection beyond that: about ten times as long as the
look took. Otherwise the handshakes of hundreds of agents, which connect at once, would take half of
the processor time of their first round for looking at each other. Few peers are missed, because a
handshake that fails takes longer than a pause."""
CLOSED_LOOKS_MIN = 2
"""Looks at which a connection has to be gone: its call may be waiting for its turn."""
PROBES_MAX = 4
"""Connections of this process to itself that are remembered until they are seen."""


class Lines(Protocol):
    """Writes audit lines."""

    def note_no_call(self, peer: str) -> None:
        """Note a connection that has ended without a call."""

    def note_no_calls(self, count: int) -> None:
        """Note such connections whose peers are not known."""


class _Called(Struct):
    """A peer that has called."""

    peer: Peer
    """Empty: it has no IP address."""
    last_s: float


class Handshakes:
    """Handshakes and the connections that came of them."""

    def __init__(
        self,
        clock_s: Callable[[], float],
        find: Callable[[int], frozenset[Peer]] = find_peers,
    ) -> None:
        """Begin.

        Args:
            clock_s: returns monotonic time.
            find: returns the peers that are connected to a port.
        """
        self.port = 0
        """That the coordinator listens on; 0: not yet."""
        self._clock_s = clock_s
        self._find = find
        self._finding = threading.Lock()
        """Held by the one that looks at who is connected."""
        self._spare_s = FIND_S_MAX
        """How long that may take now."""
        self._found_s = time.perf_counter()
        """When `_spare_s` was right."""
        self._next_s = 0.0
        """When a handshake that begins is the reason for a look again."""
        self._tidy_s = 0.0
        """When it is done even if there is nothing to find out: to forget peers that have left."""
        self._lock = threading.Lock()
        """For all below."""
        self._open = frozenset[Peer]()
        """Who was connected at the last look."""
        self._waiting: dict[Peer, int] = {}
        """Peers that have not called, and at how many looks they were gone."""
        self._texts: dict[str, _Called] = {}
        """Peers that have called, as gRPC names them."""
        self._called: set[Peer] = set()
        """The same."""
        self._probes: list[Peer] = []
        """Connections of this process to itself that were not seen yet."""
        self._begun = 0
        self._explained = 0
        """Handshakes of connections that have called, are a probe, or have a line."""
        self._unseen = 0
        """Handshakes at the last look that neither were explained nor wait."""
        self._untold = 0
        """Of these, those that will have a line."""
        self._line_s = clock_s()
        """When there may be one."""

    def note_begun(self) -> None:
        """Note that a handshake begins; gRPC's threads call this."""
        with self._lock:
            self._begun += 1
        if time.perf_counter() >= self._next_s:
            self.find()

    def note_call(self, text: str) -> None:
        """Note that a call has come on a connection; `text` has its address and port."""
        known = self._texts.get(text)
        if known is not None:
            known.last_s = self._clock_s()
            return
        peer = read_peer(text)
        with self._lock:
            self._texts[text] = _Called(peer, self._clock_s())
            self._called.add(peer)
            self._waiting.pop(peer, None)
            self._explained += 1

    def note_probe(self, peer: str) -> None:
        """Note that this process has connected to itself, and makes no call.

        Args:
            peer: its own end, as gRPC would name it. On the way it may have got another address.
        """
        found = read_peer(peer)
        with self._lock:
            if self._waiting.pop(found, None) is None:
                self._probes = [*self._probes[1 - PROBES_MAX :], found]
            else:
                self._explained += 1

    def find(self) -> None:
        """Look at who is connected, if there is something to find out, and time for it."""
        if not self.port or not self._finding.acquire(blocking=False):
            return
        try:
            began_s = time.perf_counter()
            is_needed = bool(self._waiting) or self._begun > self._explained
            grown_s = self._spare_s + (began_s - self._found_s) * FIND_SHARE_MAX
            self._spare_s, self._found_s = min(FIND_S_MAX, grown_s), began_s
            if self._spare_s <= 0 or not (is_needed or began_s >= self._tidy_s):
                return
            found = self._find(self.port)
            ended_s = time.perf_counter()
            self._spare_s -= ended_s - began_s
            self._next_s = ended_s + PAUSE_S * max(0, len(found) - FEW)
            self._tidy_s = ended_s + MINUTE_S
            with self._lock:
                self._take(found)
        except OSError:
            return  # such as no more files: then the number is known
        finally:
            self._finding.release()

    def _take(self, found: frozenset[Peer]) -> None:
        """Note who is connected; forget who has left: an address is used again some time."""
        self._open = found
        for peer in found - self._called - self._waiting.keys():
            if peer in self._probes:
                self._probes.remove(peer)
                self._explained += 1
            else:
                self._waiting[peer] = 0
        old_s = self._clock_s() - MINUTE_S
        for text, called in tuple(self._texts.items()):
            if called.last_s < old_s and called.peer not in found:
                del self._texts[text]
                self._called.discard(called.peer)

    def look(self, lines: Lines) -> None:
        """Write lines about the connections that have ended without a call, after `find`."""
        now_s = self._clock_s()
        with self._lock:
            ended = self._take_ended()
            unseen = self._begun - self._explained - len(self._waiting)
            more = max(0, min(unseen, self._unseen))
            self._unseen = unseen - more
            # Below 0: connections that were forgotten have called again.
            self._explained += min(unseen, more)
            self._untold += more - self._forgive(more)
            told = self._untold if now_s >= self._line_s else 0
            self._untold -= told
        for peer in ended:
            lines.note_no_call(show_peer(peer))
        if told:
            self._line_s = now_s + MINUTE_S
            lines.note_no_calls(told)

    def close(self, lines: Lines) -> None:
        """Write what has no line yet: the coordinator ends."""
        if self._untold:
            lines.note_no_calls(self._untold)
            self._untold = 0

    def _take_ended(self) -> list[Peer]:
        """Return the peers whose connections have ended without a call, each once."""
        for peer in self._waiting:
            self._waiting[peer] = 0 if peer in self._open else self._waiting[peer] + 1
        ended = [peer for peer, looks in self._waiting.items() if looks >= CLOSED_LOOKS_MIN]
        for peer in ended:
            del self._waiting[peer]
        self._explained += len(ended)
        return ended[self._forgive(len(ended)) :]

    def _forgive(self, count: int) -> int:
        """Return how many of so many connections are probes that were not seen as such."""
        probes = min(count, len(self._probes))
        del self._probes[:probes]
        return probes
