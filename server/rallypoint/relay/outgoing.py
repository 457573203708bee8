"""What waits to be sent to a coordinator. Pure.

An agent has room for a few messages. One that sends more waits until they are sent, and then HTTP/2
lets it wait, too: so an agent that sends without end takes no more memory than any other. While too
much waits, no other agents are taken: each attempt to connect leaves a Hello here.
"""

from __future__ import annotations

from collections import Counter, deque

from rallypoint.v1 import agent_service_pb2 as agent_pb2

ENTRIES_MAX = 1_024
"""Entries of one message, as the contract says."""
BYTES_MAX = 1024 * 1024
"""After this a message is full. Only one entry alone may be larger."""
UNSENT_MAX = 8
"""Messages of one agent that wait. It sends a few for each round."""

WAITING_MAX = UNSENT_MAX * ENTRIES_MAX
"""Entries that wait: as many as all agents of a relay may send. Beyond that no agent is added."""
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of them, likewise: a Hello that holds a round may have some hundred KiB."""


class Outgoing:
    """Entries in the order of their arrival."""

    def __init__(self) -> None:
        """Begin without any."""
        self._entries: deque[agent_pb2.RelayedRequest] = deque()
        self._unsent: Counter[int] = Counter()
        """By the number of the agent's stream."""
        self._bytes = 0

    def __len__(self) -> int:
        """Return how many entries wait."""
        return len(self._entries)

    def add(self, entry: agent_pb2.RelayedRequest) -> None:
        """Add an entry."""
        self._entries.append(entry)
        self._unsent[entry.stream] += 1
        self._bytes += entry.ByteSize()

    @property
    def is_full(self) -> bool:
        """Return whether too much waits to add an agent."""
        return len(self._entries) >= WAITING_MAX or self._bytes >= WAITING_BYTES_MAX

    def has_room(self, stream: int) -> bool:
        """Return whether an agent may send another message."""
        return self._unsent[stream] < UNSENT_MAX

    def take(self) -> agent_pb2.RelayRequest:
        """Return the next message, without entries if there are none."""
        request, size = agent_pb2.RelayRequest(), 0
        while self._entries and len(request.entries) < ENTRIES_MAX:
            more = self._entries[0].ByteSize()
            if request.entries and size + more > BYTES_MAX:
                break
            size += more
            entry = self._entries.popleft()
            request.entries.append(entry)
            self._unsent[entry.stream] -= 1
            if not self._unsent[entry.stream]:
                del self._unsent[entry.stream]
        self._bytes -= size
        return request
