"""What a relay gets, in messages of bounded size."""

from __future__ import annotations

from google.rpc.status_pb2 import Status

from rallypoint.v1 import agent_service_pb2 as agent_pb2

ENTRIES_MAX = 1_024
"""Entries of one message, as the contract says."""
BYTES_MAX = 1024 * 1024
"""After this a message is full. Only one entry alone may be larger."""


class Batches:
    """Messages to a relay that are being put together."""

    def __init__(self) -> None:
        """Begin without any."""
        self.made: list[agent_pb2.RelayResponse] = []
        """In order."""
        self._bytes = 0

    def message(self, stream: int, message: agent_pb2.SessionResponse) -> None:
        """Add a message to an agent."""
        encoded = message.SerializeToString()
        self._room(len(encoded)).entries.add(stream=stream, message=encoded)

    def end(self, stream: int, status: Status | None) -> None:
        """Add the end of an agent's stream; None: OK."""
        end = agent_pb2.RelayedEnd()
        if status is not None:
            end.code, end.text = status.code, status.message
            end.details = status.SerializeToString() if status.details else b""
        self._room(end.ByteSize()).entries.add(stream=stream, end=end)

    def sign_of_life(self) -> None:
        """Let there be a message, if only one without entries."""
        if not self.made:
            self.made.append(agent_pb2.RelayResponse())

    def _room(self, size: int) -> agent_pb2.RelayResponse:
        """Return a message with room for an entry of this size."""
        is_full = not self.made or len(self.made[-1].entries) >= ENTRIES_MAX
        if is_full or (self._bytes and self._bytes + size > BYTES_MAX):
            self.made.append(agent_pb2.RelayResponse())
            self._bytes = 0
        self._bytes += size
        return self.made[-1]
