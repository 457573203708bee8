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

from rallypoint.agent.helper.events import Exited, SpawnRequest
from rallypoint.agent.helper.frames import Decoder, encode, to_wire
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.output.streams import open_terminal
from rallypoint.base.signal_names import find_signal_name

KEPT_BYTES = 64 * 1024
"""How much output of the imports is kept, for each of stdout and stderr."""
_READS_MAX = 64
"""How often the last of it is read: a terminal gives 4 KiB or less at a time."""
_READ_BYTES = 64 * 1024


class Hangup(Exception):
    """The forkserver has closed its socket, or sent what no forkserver sends."""


class Forkserver:
    """An interpreter that imports, and forks workers then."""

    def __init__(self, id: int, terminals: tuple[bool, bool], terminal_fd: int) -> None:
        """Open its socket and the files that stand for its output.

        Args:
            id: the number by which the helper knows it.
            terminals: whether stdout and stderr of its workers are terminals; else a pipe stands
                for them.
            terminal_fd: the terminal to take the settings of.

        Raises:
            OSError: no descriptor is left.
        """
        self.id = id
        self.terminals = terminals
        self.request: SpawnRequest | None = None
        """What it was started with."""
        self.exited: Exited | None = None
        """How it has ended; None while it lives."""
        self.has_ended = asyncio.Event()
        self.failure = ""
        """Why it could not be spawned."""
        self._decoder = Decoder()
        self._messages: deque[dict[str, Any]] = deque()
        """Those that no one has waited for yet; one at most, as each answers one of ours."""
        self._arrived = asyncio.Event()
        self._is_hung_up = False
        self._loop = asyncio.get_running_loop()
        self._kept = (bytearray(), bytearray())
        self._fds: list[int] = []
        """What stands for its output, until it was spawned."""
        self._ends: list[tuple[int, int]] = []
        """Other ends of what stands for its output, with the place of what is kept. Without a
        reader an import that prints much would never end."""
        with ExitStack() as opened:
            self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            opened.callback(self.close)
            self._socket.setblocking(False)
            for at, is_terminal in enumerate(terminals):
                self._open(at, terminal_fd if is_terminal else -1)
            self._loop.add_reader(self._socket, self._read)
            opened.pop_all()

    def _open(self, at: int, terminal_fd: int) -> None:
        end, fd = os.pipe() if terminal_fd < 0 else open_terminal(terminal_fd)
        self._fds.append(fd)
        self._ends.append((end, at))
        os.set_blocking(end, False)
        self._loop.add_reader(end, self._keep, end, at)

    def _keep(self, fd: int, at: int) -> bool:
        """Read some of its output; return whether there may be more now."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # EIO: every writer has closed it
            data = b""
        if not data:
            self._loop.remove_reader(fd)
        self._kept[at].extend(data[: KEPT_BYTES - len(self._kept[at])])
        return bool(data)

    def spawn(self, host: WorkerHost, request: SpawnRequest) -> None:
        """Ask the helper for the process.

        Args:
            host: the helper.
            request: its command line, environment and folder.

        Raises:
            WorkerHostError: the helper takes no request.
            OSError: no descriptor is left.
        """
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            self.request = request._replace(
                worker_id=self.id,
                stdin_fd=null,
                stdout_fd=self._fds[0],
                stderr_fd=self._fds[1],
                server_fd=self._theirs.fileno(),
                cpus=(),
            )
            host.spawn(self.request)
        finally:
            os.close(null)
            self._theirs.close()
            self._close_files()

    def _close_files(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            Hangup: none comes any more.
        """
        while not self._messages:
            if self._is_hung_up:
                raise Hangup(self.failure or "it has ended")
            self._arrived.clear()
            await self._arrived.wait()
        return self._messages.popleft()

    def _read(self) -> None:
        """Take what has arrived. At once, so that a wait that is given up loses no message."""
        try:
            data = self._socket.recv(_READ_BYTES)
            self._messages.extend(self._decoder.feed(data))
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data = b""
        if not data:
            self._hang_up()
        self._arrived.set()

    def _read_rest(self) -> None:
        """Take everything that can be read without waiting, and listen no more."""
        with suppress(OSError):  # it has closed its end
            self._socket.shutdown(socket.SHUT_RD)
        while not self._is_hung_up:
            self._read()

    def _hang_up(self) -> None:
        self._is_hung_up = True
        self._loop.remove_reader(self._socket)

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
        message = {
            "type": "prepare",
            "modules": [to_wire(name) for name in modules],
            "calls": [to_wire(call) for call in calls],
            "path": None if path is None else to_wire(path),
            "program": [to_wire(word) for word in program],
        }
        await self._send(message)
        return await self.receive()

    async def serve(self) -> None:
        """Let it fork workers from now on.

        Raises:
            Hangup: it has ended.
        """
        await self._send({"type": "serve", "shown": self._take_kept()})

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            await self._loop.sock_sendall(self._socket, encode(message))
        except OSError as error:
            raise Hangup(str(error)) from error

    def look(self) -> None:
        """Let it look whether a file that it has imported was changed; if so, it ends."""
        with suppress(OSError):  # it has ended, or does not read
            self._socket.send(b"?", socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def find_why(self) -> str:
        """Return why it has ended by itself, as far as it has told."""
        self._read_rest()
        for message in self._messages:
            if message.get("type") == "stale":
                return str(message.get("why"))
        match self.exited:
            case Exited(signal=int(number)):
                return f"it was killed by {find_signal_name(number) or f'signal {number}'}"
            case Exited(exit_code=int(code)) if code:
                return f"it has ended with exit code {code}"
            case _:
                return "it has ended"

    def _take_kept(self) -> dict[str, str]:
        """Return what it has printed, by descriptor; nothing is kept from now on."""
        for end, at in self._ends:
            for _ in range(_READS_MAX):
                if not self._keep(end, at):
                    break
            self._loop.remove_reader(end)
        texts = (kept.decode("utf-8", "surrogateescape") for kept in self._kept)
        return {str(fd): text for fd, text in enumerate(texts, 1) if text}

    def _stop_keeping(self) -> None:
        while self._ends:
            end, _ = self._ends.pop()
            self._loop.remove_reader(end)
            os.close(end)

    def close(self) -> None:
        """Close the socket and the files; a forkserver that waits ends."""
        if not self._is_hung_up:
            self._hang_up()
        self._arrived.set()
        self._socket.close()
        self._theirs.close()
        self._close_files()
        self._stop_keeping()
