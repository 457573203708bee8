"""What waits to be sent to a coordinator. Pure.

An agent has room for a few messages. One that sends more waits until they are sent, and then HTTP/2
lets it wait, too: so an agent that sends without end takes no more memory than any other.
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


class Outgoing:
    """Entries in the order of their arrival."""

    def __init__(self) -> None:
        """Begin without any."""
        self._entries: deque[agent_pb2.RelayedRequest] = deque()
        self._unsent: Counter[int] = Counter()
        """By the number of the agent's stream."""

    def __len__(self) -> int:
        """Return how many entries wait."""
        return len(self._entries)

    def add(self, entry: agent_pb2.RelayedRequest) -> None:
        """Add an entry."""
        self._entries.append(entry)
        self._unsent[entry.stream] += 1

    def has_room(self, stream: int) -> bool:
        """Return whether an agent may send another message."""
        return self._unsent[stream] < UNSENT_MAX

    def take(self) -> agent_pb2.RelayRequest:
        """Return the next message, without entries if there are none."""
        request, size = agent_pb2.RelayRequest(), 0
        while self._entries and len(request.entries) < ENTRIES_MAX:
            size += self._entries[0].ByteSize()
            if request.entries and size > BYTES_MAX:
                break
            entry = self._entries.popleft()
            request.entries.append(entry)
            self._unsent[entry.stream] -= 1
            if not self._unsent[entry.stream]:
                del self._unsent[entry.stream]
        return request
