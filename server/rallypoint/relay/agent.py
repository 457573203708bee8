"""One agent's stream, as the relay sees it: its Hello, and what is on its way to the agent."""

from __future__ import annotations

import asyncio
from collections import deque

import grpc
from msgspec import Struct, field

from rallypoint.v1 import agent_service_pb2 as agent_pb2

UNREAD_MAX = 64
"""Messages to an agent that it has not read. It gets a few for each round, and one a heartbeat."""
UNREAD_BYTES_MAX = 8 * 1024 * 1024
"""Of those messages. One may have up to 4 MiB."""


class End(Struct, frozen=True):
    """How an agent's stream ends."""

    code: grpc.StatusCode
    text: str = ""
    details: bytes = b""
    """For the metadata `grpc-status-details-bin`; empty: there are none."""


OK = End(grpc.StatusCode.OK)


def unavailable(text: str) -> End:
    """Return the end of a stream whose agent tries another way, or the same again."""
    return End(grpc.StatusCode.UNAVAILABLE, text)


class Agent(Struct, eq=False):
    """One agent's stream."""

    opening: agent_pb2.RelayedOpening
    """With its Hello, which another coordinator may need, until there is an answer."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to send to it."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its messages were sent, so that there is room for others."""
    unread: deque[bytes] = field(default_factory=deque)
    unread_bytes: int = 0
    end: End | None = None
    """Set when its stream has to end, after what it has not read yet."""

    @property
    def is_answered(self) -> bool:
        """Return whether a coordinator has answered its Hello."""
        return not self.opening.hello

    def receive(self, message: bytes) -> None:
        """Add a message to it."""
        self.opening.ClearField("hello")
        self.unread.append(message)
        self.unread_bytes += len(message)
        if len(self.unread) > UNREAD_MAX or self.unread_bytes > UNREAD_BYTES_MAX:
            self.unread.clear()
            self.finish(unavailable("the agent has not read its messages in time"))
        self.wake.set()

    def take(self) -> bytes | None:
        """Return the next message to it; None: there is none."""
        if not self.unread:
            return None
        message = self.unread.popleft()
        self.unread_bytes -= len(message)
        return message

    def finish(self, end: End) -> None:
        """End its stream."""
        if self.end is None:
            self.end = end
        self.wake.set()
        self.room.set()
