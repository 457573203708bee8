"""Where the output of workers goes: files, console, prefixes, and consoles that block."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import pty
import re
import shutil
import signal
import struct
import termios
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.serve import Settings, serving
from rallypoint.server.shell.coordinator import Coordinator
from support.processes.commands import Command
from support.processes.feed import LIMIT_S
from support.processes.world import World

INTERVAL_S = 0.2
LEASE_S = 6.0
"""Ample for a busy machine; an agent that stands still for longer is lost."""


class Pulse:
    """The heartbeats of all agents of one coordinator."""

    def __init__(self) -> None:
        self.target = ""
        """host:port of the coordinator."""
        self._beats_s: list[float] = []
        self._came = asyncio.Event()

    def note(self) -> None:
        self._beats_s.append(time.monotonic())
        self._came.set()

    def count(self) -> int:
        return len(self._beats_s)

    async def wait(self, count: int) -> None:
        """Wait until so many more beats have been heard."""
        wanted = self.count() + count
        async with asyncio.timeout(LIMIT_S):
            while self.count() < wanted:
                self._came.clear()
                await self._came.wait()

    def longest_s(self, since: int) -> float:
        """Return the longest time between two beats, from the given one on."""
        return max(b - a for a, b in pairwise(self._beats_s[since:]))


@asynccontextmanager
async def hearing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pulse]:
    """Serve such a coordinator while the context is open."""
    pulse = Pulse()
    hear = Coordinator.hear

    def note(self: Coordinator, heartbeat: inputs.Heartbeat) -> None:
        pulse.note()
        hear(self, heartbeat)

    monkeypatch.setattr(Coordinator, "hear", note)
    timing = Timing(
        heartbeat_ms=round(INTERVAL_S * 1000), lease_ms=round(LEASE_S * 1000), window_ms=0
    )
    async with serving(Settings("127.0.0.1", 0, timing)) as running:
        pulse.target = f"127.0.0.1:{running.port}"
        yield pulse


LATE_S = 1.5
"""A gap between heartbeats that no busy machine explains."""
MEMORY_KB_MAX = 100_000


def files(folder: Path) -> dict[str, str]:
    """Return the files below the only run of a log dir: path to content."""
    (run,) = folder.iterdir()
    return {
        str(path.relative_to(run)): path.read_text() for path in run.rglob("*") if path.is_file()
    }


def empty_files(world: World) -> dict[str, str]:
    """Return an environment with a temporary folder of the test's own."""
    folder = world.folder / "tmp"
    folder.mkdir()
    return {"TMPDIR": str(folder)}


def test_streams_by_local_and_global_rank(world: World) -> None:
    """Of two nodes with two workers each, chosen streams go to files, the rest to the console."""
    folder = world.folder / "logs"
    flags = (
        f"--log-dir={folder}",
        "--tee=g0-2:1",
        "--redirects=1:3",
        "--log-line-prefix-template=<${node} ${rank} ${restart_count} ${round}> ",
        "--duplicate-stdout-filters=out 1,out 2",
    )
    agents = [world.agent(name, *flags, nnodes="2", nproc=2) for name in ("a", "b")]
    workers = world.mailbox.workers(4)
    for worker in workers:
        worker.tell("print", f"out {worker.rank}")
        worker.tell("say", f"err {worker.rank}")
        worker.tell("exit", "0")

    assert [agent.wait() for agent in agents] == [0, 0]
    assert world.left() == []
    assert sorted(agents[0].stdout().splitlines()) == ["<a 0 0 1> out 0", "<a 1 0 1> out 1"]
    assert agents[1].stdout() == "<b 2 0 1> out 2"
    assert [agent.said() for agent in agents] == [["err 0"], ["err 2"]]
    (mine,) = folder.glob(f"{world.job_id}_a_*")
    (theirs,) = folder.glob(f"{world.job_id}_b_*")
    assert {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    } == {
        f"{mine.name}/attempt_0/0/stdout.log": "out 0\n",
        f"{mine.name}/attempt_0/1/stdout.log": "out 1\n",
        f"{mine.name}/attempt_0/1/stderr.log": "err 1\n",
        f"{mine.name}/attempt_0/filtered_stdout.log": "<a 1 0 1> out 1\n",
        f"{theirs.name}/attempt_0/0/stdout.log": "out 2\n",
        f"{theirs.name}/attempt_0/1/stdout.log": "out 3\n",
        f"{theirs.name}/attempt_0/1/stderr.log": "err 3\n",
        f"{theirs.name}/attempt_0/filtered_stdout.log": "<b 2 0 1> out 2\n",
    }


def test_no_round_touches_an_earlier_rounds_files(world: World) -> None:
    """Every round has a separate folder, whether a restart was charged or not."""
    folder = world.folder / "logs"
    flags = ("-r3", "--max-restarts=1")
    first = world.agent("a", *flags, f"--log-dir={folder}", nnodes="1:2")
    (alone,) = world.mailbox.workers(1)
    alone.tell("print", "alone")
    second = world.agent("b", *flags, "--log-dir=/dev/null", nnodes="1:2")
    both = world.mailbox.workers(2, round=2)
    both[0].tell("print", "with b")
    both[0].tell("exit", "7")
    for worker in world.mailbox.workers(2, round=3):
        worker.tell("print", "again")
        worker.tell("exit", "0")

    assert [first.wait(), second.wait()] == [0, 0]
    assert [worker.env["TORCHELASTIC_ERROR_FILE"] for worker in both][1] == ""
    assert second.stdout() == "again"
    assert {path: text for path, text in files(folder).items() if text} == {
        "attempt_0/0/stdout.log": "alone\n",
        "attempt_0_round_2/0/stdout.log": "with b\n",
        "attempt_1/0/stdout.log": "again\n",
    }


def test_success_leaves_nothing_and_failure_its_record(world: World) -> None:
    """Without a log dir, empty files are removed, and an error file is kept."""
    env = empty_files(world)
    good = world.agent("a", env=env)
    world.mailbox.workers(1)[0].tell("exit", "0")
    assert good.wait() == 0
    assert os.listdir(env["TMPDIR"]) == []

    bad = world.agent("a", f"--job-id={world.job_id}-2", env=env)
    worker = world.mailbox.wait("started", 2)[1]
    path = Path(worker.fields["env"]["TORCHELASTIC_ERROR_FILE"])
    failing = next(w for w in world.mailbox.started() if w.pid == worker.pid)
    failing.tell("record", "out of luck")
    failing.tell("exit", "1")
    assert bad.wait() == 1
    assert [file for file in Path(env["TMPDIR"]).rglob("*") if file.is_file()] == [path]


def test_full_disk_for_what_is_the_agents_own_ends_no_job(world: World) -> None:
    """With logs on another disk, the next round starts, without sockets."""
    agent = world.agent("a", "--max-restarts=1", f"--log-dir={world.folder}/logs", "-t3", nproc=2)
    first = world.mailbox.workers(2)
    own = Path(first[0].env["RALLYPOINT_NOTICE_FILE"]).parents[1]
    shutil.rmtree(own)
    own.touch()  # nothing can be made below it any more
    first[0].tell("exit", "3")
    second = world.mailbox.workers(2, round=2)
    for worker in second:
        worker.tell("exit", "0")

    assert agent.wait() == 0
    assert ["TORCH_WORKER_SERVER_SOCKET" in worker.env for worker in (*first, *second)] == [
        *(True, True),
        *(False, False),
    ]


def test_terminal_stays_a_terminal(world: World) -> None:
    """Workers have the agent's own standard input and output."""
    ours, theirs = pty.openpty()
    script = "test -t 0 && test -t 1 && ! test -t 2 && read -r line && echo read $line"
    quoted = " ".join(world.standalone("--no-python", script=("sh", "-c", f"'{script}'")))
    command = f'exec {quoted} < "$0" > "$0"'
    agent = world.start("agent", ["bash", "-c", command, os.ttyname(theirs)])
    os.write(ours, b"hello\n")

    assert agent.wait() == 0, agent.stderr()
    shown = os.read(ours, 100)
    while not shown.endswith(b"read hello\r\n"):  # a terminal passes on what it has so far
        shown += os.read(ours, 100)
    assert shown == b"hello\r\nread hello\r\n"
    os.close(ours)
    os.close(theirs)


def test_standard_error_on_a_terminal_is_a_terminal(world: World) -> None:
    """Standard error is a terminal of the same size; output is unchanged, and its end is kept."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 17, 123, 0, 0))
    script = "test -t 2 && stty size <&2 && printf 'one\\ntwo\\r' >&2 && exit 3"
    quoted = " ".join(
        world.standalone("--log-format=text", "--no-python", script=("sh", "-c", f'"{script}"'))
    )
    agent = world.start("agent", ["bash", "-c", f'exec {quoted} 2> "$0"', os.ttyname(theirs)])

    assert agent.wait() == 1
    assert agent.stdout_line() == "17 123"
    shown = os.read(ours, 65_536)
    while b"the job failed" not in shown:
        shown += os.read(ours, 65_536)
    os.close(ours)
    os.close(theirs)
    of_worker = re.sub(rb"\x1b\[2m\d{4}-.*?\r\n", b"", shown)  # without the lines of the agent
    assert b"one\r\ntwo\r" in of_worker
    assert b"\r\n    one\r\n    two" in re.sub(rb"\x1b\[[0-9;]*m", b"", shown)  # without colours


# --- consoles that are slow, or stand still ---


class Screen:
    """A console for the agent's two streams; it reads on demand."""

    END = b"\0"
    KEPT_BYTES = 10_000_000

    def __init__(self, folder: Path) -> None:
        self._path = folder / "screen"
        os.mkfifo(self._path)
        self._fd = os.open(self._path, os.O_RDWR)
        self._reader: threading.Thread | None = None
        self._kept = b""
        self.size = 0
        """Bytes that were shown."""

    def start(self, world: World, argv: list[str]) -> Command:
        """Start a command that writes here."""
        redirect = f'exec "$0" "$@" > {self._path} 2>&1'
        return world.start("agent", ["bash", "-c", redirect, *argv])

    def read(self, slow_s: float) -> None:
        """Begin to read: for so long about 1 MB/s, then as fast as possible."""
        self._reader = threading.Thread(target=self._read, args=(slow_s,))
        self._reader.start()

    def _read(self, slow_s: float) -> None:
        hurry_s = time.monotonic() + slow_s
        while True:
            is_slow = time.monotonic() < hurry_s
            data = os.read(self._fd, 50_000 if is_slow else 1_000_000)
            self.size += len(data.removesuffix(self.END))
            if self.size < self.KEPT_BYTES:
                self._kept += data
            if data.endswith(self.END):
                return
            if is_slow:
                time.sleep(0.05)  # it is what a slow console does

    def text(self) -> str:
        """Return everything shown, if it is small; the command must have ended."""
        self.stop()
        return self._kept.removesuffix(self.END).decode()

    def stop(self) -> None:
        """Read to the end; no writer may be left."""
        if self._reader is not None:
            os.write(self._fd, self.END)
            self._reader.join()
            self._reader = None

    def close(self) -> None:
        self.stop()
        os.close(self._fd)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    screen = Screen(tmp_path)
    yield screen
    screen.close()


def test_report_comes_after_what_the_workers_wrote(world: World, screen: Screen) -> None:
    """A worker says a lot and dies, and the console is slow: its last words come before the report,
    and nothing is missing."""
    agent = screen.start(
        world, world.argv("a", "--tee=3", "--log-dir=/dev/null", "--log-format=text")
    )
    (worker,) = world.mailbox.workers(1)
    worker.tell("flood", "1")
    worker.tell("say", "last words")
    worker.tell("exit", "3")
    screen.read(slow_s=1)

    assert agent.wait() == 1
    lines = screen.text().splitlines()
    report = next(at for at, line in enumerate(lines) if set(line) == {"="})
    said = [line for line in lines[:report] if line.startswith("[default0]:")]
    out = [f"[default0]:{number:099d}" for number in range(10_000)]
    assert [line for line in said if line != "[default0]:last words"] == out
    assert len(said) == 10_001
    assert lines[-1].startswith("node-agent: the job failed: rank 0 ")


def read_peak_kb(pid: int) -> int:
    """Return the peak memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def sum_flood(megabytes: int) -> str:
    """Return the checksum of what the flooding worker writes."""
    found = hashlib.sha256()
    for block in range(megabytes * 10):
        numbers = range(block * 1_000, (block + 1) * 1_000)
        found.update(b"".join(b"%099d\n" % number for number in numbers))
    return found.hexdigest()


def sum_file(folder: Path) -> str:
    (path,) = folder.rglob("stdout.log")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.parametrize(
    ("megabytes", "slow_s"), [(50, 4), pytest.param(200, 0, marks=pytest.mark.long)]
)
async def test_flood(
    world: World, screen: Screen, monkeypatch: pytest.MonkeyPatch, megabytes: int, slow_s: float
) -> None:
    """Megabytes through --tee: the file has every byte, the console every line, the heart beats on
    time, and the agent stays small; also when the console takes 1 MB/s for a while."""
    folder = world.folder / "logs"
    async with hearing(monkeypatch) as pulse:
        flags = (f"--coordinator={pulse.target}", f"--log-dir={folder}", "--tee=3")
        agent = screen.start(world, world.argv("a", *flags, "--log-level=error"))
        (worker,) = await asyncio.to_thread(world.mailbox.workers, 1)
        began = pulse.count()
        screen.read(slow_s)
        worker.tell("flood", str(megabytes))
        await asyncio.to_thread(world.mailbox.wait, "flooded", limit_s=60)
        await pulse.wait(2)
        peak_kb, longest_s = read_peak_kb(agent.pid), pulse.longest_s(began)
        worker.tell("exit", "0")

        assert await asyncio.to_thread(agent.wait) == 0
    assert longest_s < LATE_S
    assert peak_kb < MEMORY_KB_MAX
    assert await asyncio.to_thread(sum_file, folder) == sum_flood(megabytes)
    screen.stop()
    assert screen.size == megabytes * 10_000 * len(f"[default0]:{0:099d}\n")


@pytest.mark.parametrize("flags", [(), pytest.param(("--tee=3",), marks=pytest.mark.long)])
async def test_console_that_stands_still_holds_up_nobody_else(
    world: World, screen: Screen, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """A worker writes without end to an unread console: its node stays in the round, and SIGTERM
    ends the agent at once."""
    async with hearing(monkeypatch) as pulse:
        log = (f"--coordinator={pulse.target}", f"--log-dir={world.folder}/logs")
        agent = screen.start(world, world.argv("a", *log, *flags))
        (worker,) = await asyncio.to_thread(world.mailbox.workers, 1)
        worker.tell("pour")
        await pulse.wait(5)  # by now every pipe is full
        began = pulse.count()
        await pulse.wait(20)
        longest_s = pulse.longest_s(began)
        agent.signal(signal.SIGTERM)

        assert await asyncio.to_thread(agent.wait, 8) == 128 + signal.SIGTERM
    assert longest_s < LATE_S
    assert len(world.mailbox.started()) == 1
    assert world.left() == []
