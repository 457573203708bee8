"""The helper's end of the socket to its agent: frames and descriptors in, events out.

Imported by the helper: standard library only, and no module that costs memory.
"""

from __future__ import annotations

import array
import socket
from collections import deque

from rallypoint.agent.helper.frames import Decoder, encode

TYPE_CHECKING = False  # mypy knows the name; importing typing would cost 1 MB
if TYPE_CHECKING:
    from typing import Any

# Events are under 200 bytes: an agent this far behind (100,000 events) counts as dead.
MAX_UNSENT_BYTES = 16 * 1024 * 1024
_READ_BYTES = 64 * 1024


class ProtocolError(Exception):
    """The agent violates the protocol of this version."""


class Control:
    """The socket, which never blocks."""

    __slots__ = ("_decoder", "_fds", "_socket", "_unsent")

    def __init__(self, control: socket.socket) -> None:
        """Use the connected socket."""
        self._socket = control
        self._decoder = Decoder()
        self._fds: deque[int] = deque()  # received, not yet claimed by their spawn
        self._unsent = bytearray()

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def send(self, kind: str, **fields: object) -> None:
        """Queue one event for the agent; `flush` sends it.

        Raises:
            ProtocolError: the agent reads nothing, and the queue is full.
        """
        self._unsent += encode({"type": kind, **fields})
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise ProtocolError("the agent does not read")

    def flush(self) -> bool:
        """Send what can be sent without blocking; return whether some is left."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the agent is gone; the next read reports it
            self._unsent.clear()
        return bool(self._unsent)

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have arrived, in order; None when the agent is gone.

        Raises: ProtocolError, ValueError: the data is not a frame.
        """
        room = socket.CMSG_SPACE(16 * array.array("i").itemsize)
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                _READ_BYTES, room, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return []
        except OSError:
            return None
        for _, _, payload in ancillary:
            self._fds.extend(array.array("i", payload))
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError("descriptors were lost")
        return list(self._decoder.feed(data)) if data else None

    def claim(self, count: int) -> tuple[int, ...]:
        """Return the descriptors of the next spawn, in the order sent. The caller owns them.

        Raises:
            ProtocolError: they have not arrived with it.
        """
        if len(self._fds) < count:
            raise ProtocolError("a spawn came without its descriptors")
        return tuple(self._fds.popleft() for _ in range(count))
