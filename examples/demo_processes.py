"""The processes of the demonstration: started here, read line by line, and ended here.

Each process runs in a new session, so Ctrl-C in a terminal reaches only the demonstration, which
then ends everything in order. Each process has a mark in its environment that all its descendants
inherit. Workers lead separate process groups; the mark finds them even when their agent is dead.
Linux only, like the node agent (/proc, pidfd).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MARK = "RALLYPOINT_DEMO"
# Longest line that is read. A longer line ends the demonstration before it fills the memory.
LINE_BYTES_MAX = 1_048_576
# Lines of each process's standard error that are shown when the demonstration fails.
TAIL_LINES = 15
# How long processes may take to end after SIGTERM before they are killed. An agent first waits for
# its workers.
PATIENCE_S = 8.0
# How long a killed process may take to disappear.
GONE_LIMIT_S = 5.0

LineListener = Callable[[str, str], None]
"""Takes a process's name and one line that it wrote."""


class DemoFailed(Exception):
    """An expected event did not happen; the text says which, in one line."""


@dataclass(slots=True)
class Process:
    """A process that the demonstration started.

    exit_code: the expected exit code, a signal as a negative number; None: not expected to end.
    tail: the end of its standard error.
    """

    name: str
    child: asyncio.subprocess.Process
    exit_code: int | None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    @property
    def is_running(self) -> bool:
        return self.child.returncode is None

    def kill(self) -> None:
        """Send SIGKILL to this process only; expect it to end by it."""
        self.exit_code = -signal.SIGKILL
        self.child.kill()

    async def wait_end(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self.child.wait()
        except TimeoutError:
            raise DemoFailed(f"{self.name} has not ended after {limit_s:g} s") from None


class Processes:
    """All processes of one demonstration."""

    def __init__(self, on_line: LineListener, on_log: LineListener) -> None:
        """Pass lines of standard output to `on_line`, those of standard error to `on_log`."""
        self._token = secrets.token_hex(8)
        self._on_line = on_line
        self._on_log = on_log
        self.all: list[Process] = []

    async def start(
        self, owner: asyncio.TaskGroup, name: str, command: Sequence[str], exit_code: int | None
    ) -> Process:
        """Start one of the commands beside this interpreter; tasks of `owner` look after it.

        Raises:
            DemoFailed: when it cannot be started; from a task of `owner`, when it ends in another
                way than expected.
        """
        program = Path(sys.executable).parent / command[0]
        try:
            child = await asyncio.create_subprocess_exec(
                program,
                *command[1:],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
                env=os.environ | {MARK: f"{self._token}/{name}"},
            )
        except OSError as error:
            raise DemoFailed(f"cannot start {program}: {error.strerror}") from error
        process = Process(name, child, exit_code)
        self.all.append(process)
        assert child.stdout is not None and child.stderr is not None
        owner.create_task(self._read(process, child.stdout, self._on_line))
        owner.create_task(self._read(process, child.stderr, self._take_log))
        owner.create_task(self._watch_end(process))
        return process

    def _take_log(self, name: str, line: str) -> None:
        next(process for process in self.all if process.name == name).tail.append(line)
        self._on_log(name, line)

    async def _read(
        self, process: Process, stream: asyncio.StreamReader, listener: LineListener
    ) -> None:
        try:
            async for line in stream:
                listener(process.name, line.decode(errors="replace").rstrip("\n"))
        except ValueError:
            text = f"{process.name} wrote a line of more than {LINE_BYTES_MAX} bytes"
            raise DemoFailed(text) from None

    async def _watch_end(self, process: Process) -> None:
        code = await process.child.wait()
        if code != process.exit_code:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise DemoFailed(f"{process.name} {how} unexpectedly")

    async def wait_gone(self, name: str = "", limit_s: float = GONE_LIMIT_S) -> None:
        """Wait until no descendant of the named process, or of any, is left.

        Raises:
            DemoFailed: after `limit_s`; the text names the remaining ones.
        """
        try:
            async with asyncio.timeout(limit_s):
                while found := self._find_marked(name):
                    for pid in found:
                        await _wait_end_of(pid)
        except TimeoutError:
            left = ", ".join(_describe(pid) for pid in self._find_marked(name))
            raise DemoFailed(f"left behind by {name or 'the job'}: {left or 'something'}") from None

    async def close(self) -> None:
        """End all processes: SIGTERM, wait, SIGKILL. Bounded in time; a survivor is no error."""
        running = [process for process in self.all if process.is_running]
        for process in running:
            with suppress(ProcessLookupError):
                process.child.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                for process in running:
                    await process.child.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(GONE_LIMIT_S):
                while found := self._find_marked():
                    for pid in found:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    for pid in found:
                        await _wait_end_of(pid)

    def _find_marked(self, name: str = "") -> list[int]:
        """Return the living processes with the mark, of the named process or of any, by pid."""
        mark = f"\0{MARK}={self._token}/{name}".encode() + (b"\0" if name else b"")
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):  # it has ended, or belongs to another user
                    if mark in b"\0" + (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return sorted(found)


async def _wait_end_of(pid: int) -> None:
    """Return when the process, a child or not, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _describe(pid: int) -> str:
    command = b""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    words = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return f"pid {pid} ({words[:80]})"
