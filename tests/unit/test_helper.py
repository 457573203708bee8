"""The helper process and the agent's side of it, with real processes."""

import asyncio
import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from rallypoint.agent.frames import MAX_FRAME_BYTES, Decoder, FrameTooLarge, encode
from rallypoint.agent.leftovers import AGENT_MARK_ENV, compute_mark
from rallypoint.agent.process import HostClosed, WorkerHost
from rallypoint.agent.worker_events import (
    Blocked,
    Clean,
    Exited,
    HostEvent,
    Spawned,
    SpawnFailed,
    SpawnRequest,
    Swept,
)

DEADLINE_S = 10
PYTHON = (sys.executable, "-I", "-S", "-c")
# A worker, and below it a child and a double-forked daemon in sessions of their own, all of which
# ignore TERM. Each says "<name> <pid>" once it does.
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


class Conversation:
    """A host with its events, in order; every wait has a deadline."""

    def __init__(self, host: WorkerHost) -> None:
        self.host = host
        self.events: asyncio.Queue[HostEvent] = asyncio.Queue()
        host.attach(self.events.put_nowait)

    async def next(self) -> HostEvent:
        async with asyncio.timeout(DEADLINE_S):
            return await self.events.get()

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
        """Return everything until the last writer is gone; this process gives up its own end."""
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
    """Pidfds of processes, opened while they live, to see them die and to end what is left."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def watch(self, *pids: int) -> None:
        self._fds.update({pid: os.pidfd_open(pid) for pid in pids})

    def is_alive(self, pid: int) -> bool:
        return not select.select([self._fds[pid]], [], [], 0)[0]

    def await_deaths(self) -> list[int]:
        """Return who still lives at the deadline."""
        end = time.monotonic() + DEADLINE_S
        left = dict(self._fds)
        while left and (wait_s := end - time.monotonic()) > 0:
            dead = select.select(list(left.values()), [], [], wait_s)[0]
            left = {pid: fd for pid, fd in left.items() if fd not in dead}
        return sorted(left)

    def close(self) -> None:
        for fd in self._fds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)


@pytest.fixture
async def talk() -> AsyncIterator[Conversation]:
    conversation = Conversation(WorkerHost.launch())
    yield conversation
    await conversation.host.close()


@pytest.fixture
def output() -> Iterator[Lines]:
    lines = Lines()
    yield lines
    lines.close()


@pytest.fixture
def witness() -> Iterator[Witness]:
    witness = Witness()
    yield witness
    witness.close()


# --- spawn, exit, signal ---


@pytest.mark.parametrize(
    ("code", "exit_code", "signum"),
    [("pass", 0, None), ("raise SystemExit(3)", 3, None), ("import os; os.kill(0, 9)", None, 9)],
)
async def test_exit_is_reported(
    talk: Conversation, code: str, exit_code: int | None, signum: int | None
) -> None:
    """A worker's exit code or killing signal arrives, after its Spawned."""
    pid = await talk.start(*PYTHON, code)

    assert await talk.next() == Exited(1, pid, exit_code, signum)


async def test_output_goes_to_the_given_descriptors(talk: Conversation, output: Lines) -> None:
    """Stdout and stderr are the two descriptors of the request, stdin is empty."""
    errors = Lines()
    command = "cat; echo out; echo err >&2"
    talk.host.spawn(
        SpawnRequest(
            worker_id=1,
            argv=("sh", "-c", command),
            env={"PATH": os.environ["PATH"]},
            cwd="/",
            stdout_fd=output.write_fd,
            stderr_fd=errors.write_fd,
        )
    )

    assert (output.all(), errors.all()) == (b"out\n", b"err\n")
    errors.close()


async def test_many_workers_start_and_end(talk: Conversation) -> None:
    """Fifty workers at once: each is answered once and exits once, before Clean."""
    for worker_id in range(50):
        talk.ask("sleep", "1000", worker_id=worker_id)
    spawned = [await talk.next() for _ in range(50)]
    talk.host.sweep(1, 5000)
    exited = [await talk.next() for _ in range(50)]

    assert all(isinstance(event, Spawned) for event in spawned)
    assert sorted(e.worker_id for e in exited if isinstance(e, Exited)) == list(range(50))
    assert await talk.next() == Clean(1)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("no-such-program",), errno.ENOENT),
        (("/no/such/program",), errno.ENOENT),
        ((os.devnull,), errno.EACCES),
        (("true", "a\0b"), errno.EINVAL),
        ((), errno.EINVAL),
        (("true", "x" * 200_000), errno.E2BIG),
    ],
)
async def test_exec_failure_is_answered(
    talk: Conversation, argv: tuple[str, ...], code: int
) -> None:
    """What cannot be executed is SpawnFailed with the errno, and no Exited follows."""
    talk.ask(*argv)
    failed = await talk.next()
    talk.host.sweep(1, 5000)

    assert isinstance(failed, SpawnFailed) and failed.errno == code, failed
    assert await talk.next() == Clean(1)


async def test_missing_working_directory_is_named(talk: Conversation) -> None:
    """A working directory that is not there is SpawnFailed, naming it."""
    talk.ask("true", cwd="/no/such/folder")
    failed = await talk.next()

    assert isinstance(failed, SpawnFailed) and failed.errno == errno.ENOENT
    assert "/no/such/folder" in failed.message


async def test_live_id_is_refused(talk: Conversation) -> None:
    """A second spawn under the id of a live worker is refused and leaves the first alone."""
    pid = await talk.start("sleep", "1000")
    talk.ask("true")
    failed = await talk.next()
    talk.host.signal(signal.SIGTERM, [1])

    assert isinstance(failed, SpawnFailed) and failed.errno == errno.EEXIST
    assert await talk.next() == Exited(1, pid, None, signal.SIGTERM)


async def test_environment_is_exact_also_beyond_utf8(talk: Conversation, output: Lines) -> None:
    """The worker's environment is the request's, byte for byte, and nothing more."""
    raw = b"\xff\xfe \xc3\xa4"
    talk.ask(
        "env", "-0", env={"PATH": os.environ["PATH"], "RAW": os.fsdecode(raw)}, out=output.write_fd
    )

    expected = {b"PATH=" + os.environb[b"PATH"], b"RAW=" + raw, b""}
    assert set(output.all().split(b"\0")) == expected


async def test_worker_inherits_no_descriptor(talk: Conversation, output: Lines) -> None:
    """Only 0, 1 and 2 are open in a worker; 3 is the listing itself. Also beside other workers."""
    for worker_id in range(2, 6):
        await talk.start("sleep", "1000", worker_id=worker_id)
    talk.ask("ls", "/proc/self/fd", out=output.write_fd)

    assert output.all().split() == [b"0", b"1", b"2", b"3"]


async def test_signal_state_is_reset(output: Lines) -> None:
    """Nothing is ignored, caught or blocked in a worker, whatever agent and helper do."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGINT})
    try:
        talk = Conversation(WorkerHost.launch())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    talk.ask("cat", "/proc/self/status", out=output.write_fd)
    status = dict(line.split(b":\t") for line in output.all().splitlines())
    await talk.host.close()

    assert {int(status[key], 16) for key in (b"SigIgn", b"SigCgt", b"SigBlk")} == {0}


async def test_worker_leads_its_own_session(talk: Conversation, output: Lines) -> None:
    """A worker is leader of its session and group, below the helper."""
    pid = await talk.start("cat", "/proc/self/stat", out=output.write_fd)

    assert output.all().rpartition(b") ")[2].split()[1:4] == [
        b"%d" % number for number in (talk.host.pid, pid, pid)
    ]


async def test_signal_reaches_the_group(talk: Conversation, output: Lines) -> None:
    """TERM to a worker reaches the children in its group too."""
    await talk.start("sh", "-c", "sleep 1000 & echo up; wait", out=output.write_fd)
    output.line()
    talk.host.signal(signal.SIGTERM)

    assert output.all() == b""  # ends only when the sleep, which holds it too, is gone


async def test_signal_right_after_spawn_is_not_lost(talk: Conversation) -> None:
    """A signal sent before the worker has exec'ed comes to the worker, not to a deaf child."""
    talk.ask("sleep", "1000")
    talk.host.signal(signal.SIGTERM, [1])
    spawned = await talk.next()

    assert isinstance(spawned, Spawned)
    assert await talk.next() == Exited(1, spawned.pid, None, signal.SIGTERM)


async def test_signal_reaches_a_group_whose_leader_is_gone(
    talk: Conversation, output: Lines
) -> None:
    """The rest of a group still gets signals after its leader was reaped; an empty group none."""
    await talk.start("sh", "-c", "sleep 1000 & exit 0", out=output.write_fd)
    assert isinstance(await talk.next(), Exited)
    talk.host.signal(signal.SIGTERM, [1])

    assert output.all() == b""
    talk.host.signal(signal.SIGTERM, [1, 99])  # nobody there: passed over
    assert await talk.start("true")


# --- sweep and end ---


async def test_sweep_kills_every_descendant(
    talk: Conversation, output: Lines, witness: Witness
) -> None:
    """Sessions of their own, double forks and deafness to TERM save nobody from a sweep."""
    pid = await talk.start(*PYTHON, STUBBORN_TREE, out=output.write_fd)
    pids = output.pids(3)
    witness.watch(*pids.values())
    talk.host.signal(signal.SIGTERM)
    talk.host.sweep(7, 5000)

    assert await talk.next() == Exited(1, pid, None, signal.SIGKILL)
    assert await talk.next() == Clean(7)
    assert [witness.is_alive(pid) for pid in pids.values()] == [False] * 3
    assert await talk.start("true"), "a worker can start after the sweep"


async def test_sweep_that_cannot_finish_says_so(talk: Conversation, witness: Witness) -> None:
    """Who cannot be reaped makes the sweep Blocked, once; no spawn meanwhile; Clean when it goes.

    A tracer holds the death of its tracee back from the parent, as uninterruptible sleep would.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    pid = await talk.start("sleep", "1000")
    witness.watch(pid)
    if libc.ptrace(0x4206, pid, None, None) != 0:  # PTRACE_SEIZE
        pytest.skip("ptrace is not allowed here")
    talk.host.sweep(7, 50)

    assert await talk.next() == Blocked(7, (pid,))
    talk.ask("true", worker_id=2)
    refused = await talk.next()
    assert isinstance(refused, SpawnFailed) and refused.errno == errno.EBUSY
    assert witness.await_deaths() == []
    os.waitpid(pid, 0)  # as tracer
    assert await talk.next() == Exited(1, pid, None, signal.SIGKILL)
    assert await talk.next() == Clean(7)


async def test_close_kills_everything(output: Lines, witness: Witness) -> None:
    """After close() no descendant and no helper is left, and requests are refused."""
    talk = Conversation(WorkerHost.launch())
    await talk.start(*PYTHON, STUBBORN_TREE, out=output.write_fd)
    witness.watch(talk.host.pid, *output.pids(3).values())
    await talk.host.close()

    assert witness.await_deaths() == []
    with pytest.raises(HostClosed):
        talk.host.signal(signal.SIGTERM)


async def test_helper_is_deaf(talk: Conversation) -> None:
    """What a terminal or an init sends to all processes does not end the helper."""
    for signum in (1, 2, 3, 10, 12, 13, 15):
        os.kill(talk.host.pid, signum)

    assert await talk.start("true")


async def test_helper_is_small(
    talk: Conversation, record_property: pytest.RecordProperty = None
) -> None: ...
