"""One standby: its process, the socket to it, and where its output goes while it imports.

See in_worker/standby/sitecustomize.py for the frames. The supervisor's pool (pool.py) decides what
is sent; here is how.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from rallypoint.agent.helper.events import Exited, SpawnRequest
from rallypoint.agent.helper.frames import Decoder, encode, to_wire
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.output.kinds import Kind, Kinds, open_like
from rallypoint.agent.warm.command import SOCKET_NUMBER
from rallypoint.base.signal_names import find_signal_name

KEPT_BYTES = 64 * 1024
"""How much output of the imports to a pipe or a terminal is kept."""
_READS_MAX = 64
"""How often the last of it is read: a terminal gives 4 KiB or less at a time."""
_READ_BYTES = 64 * 1024
_LOOK = encode({"type": "look"})


class Hangup(Exception):
    """The standby has closed its socket, or sent what no standby sends."""


class Standby:
    """An interpreter that waits to become the worker with one local rank."""

    def __init__(self, standby_id: int, local_rank: int, kinds: Kinds, terminal_fd: int) -> None:
        """Open its socket and the files that stand for its output.

        Args:
            standby_id: the number by which its helper knows it.
            local_rank: of the worker that it may become.
            kinds: of that worker's output.
            terminal_fd: the terminal to take the settings of.

        Raises:
            OSError: no descriptor is left.
        """
        self.id = standby_id
        self.local_rank = local_rank
        self.kinds = kinds
        self.pid = 0
        """0 until it was spawned."""
        self.request: SpawnRequest | None = None
        """What it was started with."""
        self.program: tuple[str, ...] = ()
        """How its command line ends: the script, or -m and a module, and the arguments."""
        self.is_known = asyncio.Event()
        """Set once its helper has answered whether it was spawned."""
        self.exited: Exited | None = None
        """How it has ended; None while it lives."""
        self.failure = ""
        """Why it could not be spawned."""
        self.host: WorkerHost | None = None
        """Its helper, once it was asked for the process."""
        self._decoder = Decoder()
        self._messages: deque[dict[str, Any]] = deque()
        """Those that no one has waited for yet; one at most, as each answers one of ours."""
        self._arrived = asyncio.Event()
        self._is_hung_up = False
        self._unsent = b""
        """The part of the request to run that the socket did not take."""
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
            for at, kind in enumerate((kinds.out, kinds.err)):
                self._fds.append(self._open(kind, at, terminal_fd))
            self._loop.add_reader(self._socket, self._read)
            opened.pop_all()

    def _open(self, kind: Kind, at: int, terminal_fd: int) -> int:
        fd, end = open_like(kind, terminal_fd)
        if end >= 0:
            self._ends.append((end, at))
            os.set_blocking(end, False)
            self._loop.add_reader(end, self._keep, end, at)
        return fd

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
        """Ask a helper for the process.

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
                passed_fd=self._theirs.fileno(),
                passed_as=SOCKET_NUMBER,
            )
            host.spawn(self.request)
            self.host = host
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
        self, modules: Sequence[str], calls: Sequence[str], path: str | None
    ) -> dict[str, Any]:
        """Let it import and call; return what became of that.

        Args:
            modules: to import.
            calls: functions to call then.
            path: what is first on sys.path meanwhile; None: nothing.

        Raises:
            Hangup: it has ended.
        """
        frame = encode(
            {
                "type": "prepare",
                "modules": [to_wire(name) for name in modules],
                "calls": [to_wire(call) for call in calls],
                "path": None if path is None else to_wire(path),
                "program": [to_wire(word) for word in self.program],
            }
        )
        try:
            await self._loop.sock_sendall(self._socket, frame)
        except OSError as error:
            raise Hangup(str(error)) from error
        return await self.receive()

    def look(self) -> None:
        """Let it look whether a file that it has imported was changed; if so, it ends."""
        with suppress(OSError):  # it has ended, or does not read
            self._socket.send(_LOOK, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def ask(
        self, environ: Mapping[str, str], argv: Sequence[str], stdio: tuple[int, int, int]
    ) -> None:
        """Let it become a worker; `answer` tells whether it does.

        Args:
            environ: the whole environment of the worker.
            argv: what follows the script in its command line.
            stdio: its standard streams, borrowed for the call.

        Raises:
            ValueError: environment or arguments cannot be encoded, or exceed a frame.
        """
        frame = encode(
            {
                "type": "run",
                "environ": {to_wire(key): to_wire(value) for key, value in environ.items()},
                "argv": [to_wire(word) for word in argv],
                "shown": self._take_kept(),
            }
        )
        try:
            sent = socket.send_fds(self._socket, [frame], list(stdio), socket.MSG_NOSIGNAL)
            self._unsent = frame[sent:]
        except OSError:  # it has ended, perhaps with a reason that waits to be read
            self._read_rest()

    async def answer(self) -> str:
        """Return why it does not become a worker, or "" if it does."""
        try:
            if self._unsent:  # else it may have answered, and closed its end
                await self._loop.sock_sendall(self._socket, self._unsent)
            return understand(await self.receive())
        except (OSError, Hangup):
            return "" if self.refuse() else self.find_why()

    def refuse(self) -> bool:
        """Take back `run`, unless the standby has answered already; return whether it runs.

        After this no answer can come: a standby that tries to send one ends.
        """
        self._read_rest()
        return any(not understand(message) for message in self._messages)

    def find_why(self) -> str:
        """Return why it has ended by itself, as far as it has told."""
        self._read_rest()
        for message in self._messages:
            return understand(message)
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
        """Close the socket and the files; a standby that waits ends."""
        if not self._is_hung_up:
            self._hang_up()
        self._arrived.set()
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)  # of a request that was not sent completely
        self._socket.close()
        self._theirs.close()
        self._close_files()
        self._stop_keeping()


def understand(message: Mapping[str, Any]) -> str:
    """Return why a standby does not run, or "" if it does."""
    match message:
        case {"type": "running"}:
            return ""
        case {"type": "stale", "why": str(why)}:
            return why
        case _:
            return "it does not follow the protocol"
