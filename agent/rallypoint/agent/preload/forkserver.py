"""The agent's end of a forkserver: its process, the socket to it, and its output while it imports.

See in_worker/preload/sitecustomize.py for the frames. preloader.py decides what is sent; here is
how.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from rallypoint.agent.helper.events import Exited, SpawnFailed, SpawnRequest
from rallypoint.agent.helper.frames import Decoder, encode, to_wire
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.output.streams import open_terminal
from rallypoint.base.exit_codes import find_signal_name

KEPT_BYTES = 64 * 1024
"""How much output of the imports is kept, for each of stdout and stderr."""
EXIT_LIMIT_S = 1.0
"""How far the exit of a forkserver and the end of its socket may be apart."""
_READS_MAX = 64
"""How often the last of its output is read: a terminal gives 4 KiB or less at a time."""
_READ_BYTES = 64 * 1024


class Hangup(Exception):
    """The forkserver has closed its socket, or sent what no forkserver sends."""


class KeptOutput:
    """Stands for stdout or stderr of the imports, and keeps the start of what they print.

    Without a reader, an import that prints much would never end.
    """

    def __init__(self, terminal_fd: int) -> None:
        """Open it.

        Args:
            terminal_fd: the terminal to be like; below 0: it is a pipe.

        Raises:
            OSError: no descriptor is left.
        """
        end, theirs = os.pipe() if terminal_fd < 0 else open_terminal(terminal_fd)
        self._end, self.theirs = open(end, "rb", 0), open(theirs, "wb", 0)
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(end, False)
        self._loop.add_reader(end, self._read)

    def _read(self) -> bool:
        """Read some of it; return whether there may be more now."""
        try:
            data = self._end.read(_READ_BYTES)
        except OSError:  # EIO: every writer has closed it
            data = b""
        if data is None:
            return False
        if not data:
            self._loop.remove_reader(self._end)
        self._kept.extend(data[: KEPT_BYTES - len(self._kept)])
        return bool(data)

    def take(self) -> str:
        """Return what was printed; nothing is kept from now on."""
        for _ in range(_READS_MAX):
            if not self._read():
                break
        self._loop.remove_reader(self._end)
        return self._kept.decode("utf-8", "surrogateescape")

    def close(self) -> None:
        """Close both ends."""
        self._loop.remove_reader(self._end)
        self._end.close()
        self.theirs.close()


class Forkserver:
    """An interpreter that imports, and forks workers then."""

    def __init__(
        self, request: SpawnRequest, terminals: tuple[bool, bool], terminal_fd: int
    ) -> None:
        """Begin without a process.

        Args:
            request: its id, command line, environment and folder.
            terminals: whether stdout and stderr of its workers are terminals; else a pipe stands
                for them.
            terminal_fd: the terminal to take the settings of.
        """
        self.id = request.worker_id
        self.request = request
        self.terminals = terminals
        self.end: Exited | SpawnFailed | None = None
        """How it has ended; None while it lives."""
        self._terminal_fd = terminal_fd
        self._has_ended = asyncio.Event()
        self._why = ""
        """What it has told about that."""
        self._opened = ExitStack()
        self._outputs: list[KeptOutput] = []
        self._decoder = Decoder()
        self._messages: deque[dict[str, Any]] = deque()

    async def spawn(self, host: WorkerHost) -> None:
        """Ask the helper for the process. The caller closes this object, also after a failure.

        Raises:
            WorkerHostError: the helper takes no request.
            OSError: no descriptor is left.
        """
        self._socket, theirs = socket.socketpair()
        with theirs, open(os.devnull, "rb") as null:  # noqa: ASYNC230 - it does not block
            self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
            self._opened.callback(self._writer.transport.abort)
            for is_terminal in self.terminals:
                output = KeptOutput(self._terminal_fd if is_terminal else -1)
                self._opened.callback(output.close)
                self._outputs.append(output)
            request = self.request._replace(
                stdin_fd=null.fileno(),
                stdout_fd=self._outputs[0].theirs.fileno(),
                stderr_fd=self._outputs[1].theirs.fileno(),
                server_fd=theirs.fileno(),
                cpus=(),
            )
            host.spawn(request)
        for output in self._outputs:
            output.theirs.close()

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            Hangup: none comes any more.
        """
        while not self._messages:
            try:
                data = await self._reader.read(_READ_BYTES)
                self._messages.extend(self._decoder.feed(data))
            except (OSError, ValueError):
                data = b""
            if not data:
                raise Hangup
        message = self._messages.popleft()
        if message.get("type") == "stale":
            self._why = str(message.get("why"))
            raise Hangup
        return message

    async def prepare(
        self,
        modules: Sequence[str],
        calls: Sequence[str],
        path: str | None,
        program: Sequence[str],
    ) -> dict[str, Any]:
        """Let it import and call; return what became of that.

        Args:
            modules: to import.
            calls: functions to call then.
            path: what is first on sys.path meanwhile; None: nothing.
            program: how its command line ends: the script, or -m and a module, and the arguments.

        Raises:
            Hangup: it has ended.
        """
        self._send(
            type="prepare",
            modules=[to_wire(name) for name in modules],
            calls=[to_wire(call) for call in calls],
            path=None if path is None else to_wire(path),
            program=[to_wire(word) for word in program],
        )
        return await self.receive()

    def serve(self) -> None:
        """Let it fork workers from now on."""
        texts = {str(fd): output.take() for fd, output in enumerate(self._outputs, 1)}
        self._send(type="serve", shown={fd: text for fd, text in texts.items() if text})

    def look(self) -> None:
        """Let it look whether a file that it has imported was changed; if so, it ends."""
        # It may have ended, or not read. After an error the writer would read no more.
        with suppress(OSError):
            self._socket.send(b"?", socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def _send(self, **message: Any) -> None:
        self._writer.write(encode(message))

    def note_end(self, event: Exited | SpawnFailed) -> None:
        """Note how it has ended."""
        self.end = event
        self._has_ended.set()

    async def find_why(self) -> str:
        """Return why it has ended by itself, as far as it has told. Takes a moment."""
        with suppress(TimeoutError, Hangup):
            async with asyncio.timeout(EXIT_LIMIT_S):
                await self._has_ended.wait()
                while True:
                    await self.receive()
        match self.end:
            case _ if self._why:
                return self._why
            case SpawnFailed(message=text):
                return text
            case Exited(signal=int(number)):
                return f"it was killed by {find_signal_name(number) or f'signal {number}'}"
            case Exited(exit_code=int(code)) if code:
                return f"it has ended with exit code {code}"
            case _:
                return "it has ended"

    def close(self) -> None:
        """Close the socket and the files; a forkserver that waits ends."""
        self._opened.close()
