"""Real processes under test: use a worker host, read what workers write, see them die."""

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.helper.events import Exited, HostEvent, Spawned, SpawnRequest, Swept
from rallypoint.agent.helper.host import WorkerHost

DEADLINE_S = 30
"""Far beyond what is expected: a limit for what hangs."""
PYTHON = (sys.executable, "-I", "-S", "-c")
# A worker, and below it a child and a double-forked daemon in separate sessions, all of which
# ignore TERM. Each prints "<name> <pid>" once it does.
STUBBORN_TREE = textwrap.dedent("""
    import os, signal
    def stay(name):
        os.write(1, f"{name} {os.getpid()}\\n".encode())
        while True:
            signal.pause()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        stay("child")
    if (middle := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            stay("daemon")
        os._exit(0)
    os.waitpid(middle, 0)
    stay("worker")
""")


def exited(worker_id: int, pid: int, exit_code: int | None, signum: int | None) -> Exited:
    """Return an exit without its times, as `Conversation.next` returns it."""
    return Exited(worker_id, pid, exit_code, signum, at_ns=0)


class Conversation:
    """A host with its events, in order; every wait has a deadline."""

    def __init__(self, host: WorkerHost) -> None:
        self.host = host
        self.events: asyncio.Queue[HostEvent] = asyncio.Queue()
        host.attach(self.events.put_nowait)

    async def next(self, deadline_s: float = DEADLINE_S, *, with_swept: bool = False) -> HostEvent:
        """Return the next event, an exit without its times.

        Leftovers of other test runs on this machine are skipped.
        """
        event = await self.next_dated(deadline_s, with_swept=with_swept)
        return exited(*event[:4]) if isinstance(event, Exited) else event

    async def next_dated(
        self, deadline_s: float = DEADLINE_S, *, with_swept: bool = False
    ) -> HostEvent:
        """Return the next event with all that it tells."""
        async with asyncio.timeout(deadline_s):
            while isinstance(event := await self.events.get(), Swept) and not with_swept:
                pass
            return event

    def ask(
        self,
        *argv: str,
        worker_id: int = 1,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        out: int = 2,
    ) -> None:
        environ = dict(os.environ) if env is None else env
        self.host.spawn(
            SpawnRequest(
                worker_id=worker_id, argv=argv, env=environ, cwd=cwd, stdout_fd=out, stderr_fd=2
            )
        )

    async def start(self, *argv: str, worker_id: int = 1, out: int = 2) -> int:
        self.ask(*argv, worker_id=worker_id, out=out)
        event = await self.next()
        assert isinstance(event, Spawned), event
        return event.pid


class Lines:
    """The read end of a pipe that workers write to."""

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        self._file = os.fdopen(self._read_fd, "rb", buffering=0)
        self._rest = b""

    def line(self) -> str:
        while b"\n" not in self._rest:
            chunk = self._read()
            assert chunk, "end of output"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def all(self) -> bytes:
        """Close this process's own end; return everything until the last writer is gone."""
        self.hang_up()
        while chunk := self._read():
            self._rest += chunk
        return self._rest

    def pids(self, count: int) -> dict[str, int]:
        pairs = [self.line().split() for _ in range(count)]
        return {name: int(pid) for name, pid in pairs}

    def _read(self) -> bytes:
        assert select.select([self._read_fd], [], [], DEADLINE_S)[0], "no output in time"
        return self._file.read(65536) or b""

    def hang_up(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        self.hang_up()
        self._file.close()


class Witness:
    """Pidfds of processes, opened while they live, to see them die and to end the rest."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def watch(self, *pids: int) -> None:
        self._fds.update({pid: os.pidfd_open(pid) for pid in pids})

    def is_alive(self, pid: int) -> bool:
        return not select.select([self._fds[pid]], [], [], 0)[0]

    def await_deaths(self, *pids: int) -> list[int]:
        """Return which of these, or of all, still live at the deadline."""
        end = time.monotonic() + DEADLINE_S
        left = {pid: self._fds[pid] for pid in pids or self._fds}
        while left and (wait_s := end - time.monotonic()) > 0:
            dead = select.select(list(left.values()), [], [], wait_s)[0]
            left = {pid: fd for pid, fd in left.items() if fd not in dead}
        return sorted(left)

    def close(self) -> None:
        for fd in self._fds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)


def read_pss_kb(pid: int) -> int:
    """Return the process's proportional share of memory."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))


def trace(pid: int) -> bool:
    """Become the tracer of a process; return whether that is allowed here."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.ptrace(0x4206, pid, None, None) == 0)  # PTRACE_SEIZE


def release_dead(pid: int) -> None:
    """Stop tracing a dead process, so that its parent can reap it."""
    os.waitpid(pid, 0)


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
