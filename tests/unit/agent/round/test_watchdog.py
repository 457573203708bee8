"""The watchdog for timers of workers: which process it signals, when, and what it reports."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.agent.round import watchdog as watchdog_module
from rallypoint.agent.round.observer import WorkerEnd
from rallypoint.agent.round.watchdog import Expiry, Watchdog
from rallypoint.agent.torchelastic.timers import LINE_BYTES_MAX, TimerFileRefused
from rallypoint.base.file_thread import FileThread
from support.torchrun.timers import line

KILL, TERM = int(signal.SIGKILL), int(signal.SIGTERM)
SOON_S = 0.05
LATER_S = 600.0
ON = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}


class Bench:
    """A watchdog over this process's descendants, its FIFO, and children with timers."""

    def __init__(self, path: Path) -> None:
        self.root = os.getpid()
        self.files, self._path, self._client = FileThread("own files"), path, -1
        self.watchdog = Watchdog(ON, lambda: path.parent, self.files, lambda: self.root)
        self.children: list[subprocess.Popen[bytes]] = []

    async def begin(self) -> None:
        await self.watchdog.begin()
        assert self.watchdog.variables() == {"TORCHELASTIC_TIMER_FILE": str(self._path)}
        self._client = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)

    def child(self, local_rank: int | None = None) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(["sleep", "1000"])
        self.children.append(child)
        if local_rank is not None:
            self.watchdog.started(child.pid, local_rank)
        return child

    def family(self) -> tuple[subprocess.Popen[bytes], int]:
        """Start a process that ends with 0 when its child does; return it, and the child's pid."""
        command = ["sh", "-c", "sleep 1000 & echo $!; wait"]
        parent = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.children.append(parent)
        assert parent.stdout is not None
        with parent.stdout:
            return parent, int(parent.stdout.readline())

    def write(self, data: bytes) -> None:
        os.write(self._client, data)

    def set(self, pid: int, after_s: float, scope: str = "step", signum: int = KILL) -> None:
        self.write(line(pid, time.time() + after_s, scope, signum))  # noqa: TID251  # as clients do

    def release(self, pid: int, scope: str = "step") -> None:
        self.write(line(pid, -1, scope, 0))

    async def read(self) -> None:
        """Let the loop see what was written, and then read it."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def close(self) -> None:
        os.close(self._client)
        self.watchdog.close()
        assert self.files.flush(10)
        assert not self._path.exists()
        for child in self.children:
            child.kill()
            child.wait()


async def death(child: subprocess.Popen[bytes]) -> int:
    """Wait until a child has died, while the loop runs; return its status."""
    async with asyncio.timeout(10):
        return await asyncio.to_thread(child.wait)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "timers")
    await bench.begin()
    yield bench
    bench.close()


@pytest.mark.parametrize("environment", [{}, {"TORCHELASTIC_ENABLE_FILE_TIMER": "0"}])
async def test_watchdog_that_is_off_has_no_fifo(environment: dict[str, str]) -> None:
    """It needs no folder either."""
    environment["TORCHELASTIC_TIMER_FILE"] = "/x/f"
    watchdog = Watchdog(environment, Path, FileThread("own files"), os.getpid)
    await watchdog.begin()
    watchdog.close()

    assert watchdog.variables() == {}


async def test_folder_that_hangs_stops_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The FIFO is refused; one that is made later is removed."""
    monkeypatch.setattr(watchdog_module, "MAKE_S_MAX", 0.1)
    files, may_make = FileThread("own files"), threading.Event()

    def folder() -> Path:
        may_make.wait(10)
        return tmp_path

    watchdog = Watchdog(ON, folder, files, os.getpid)
    with pytest.raises(TimerFileRefused, match=r"does not answer within 0\.1 s"):
        await watchdog.begin()
    may_make.set()

    assert files.flush(10)
    assert os.listdir(tmp_path) == []
    assert watchdog.variables() == {}


async def test_only_an_expired_timer_signals(bench: Bench) -> None:
    """Of three workers with timers, only the one whose timer expires gets its signal."""
    late, done, later = (bench.child(local_rank) for local_rank in range(3))
    bench.set(done.pid, SOON_S)
    bench.set(later.pid, LATER_S)
    bench.set(late.pid, LATER_S, "epoch", TERM)
    bench.set(late.pid, SOON_S, "step", KILL)
    bench.release(done.pid)
    with capture_logs() as logs:
        assert await death(late) == -KILL
    expiry = bench.watchdog.ended(late.pid)

    assert expiry is not None and expiry.signum == KILL
    assert expiry.text.startswith("timer 'step' expired: not released within 0.")
    assert [(log["event"], log["pid"], log["local_rank"], log["scope"]) for log in logs] == [
        ("timer_expired", late.pid, 0, "step")
    ]
    assert 0 <= logs[0]["late_ms"] < 5_000
    assert [done.poll(), later.poll()] == [None, None]
    assert [bench.watchdog.ended(child.pid) for child in (done, later)] == [None, None]


async def test_first_timer_with_a_signal_counts(bench: Bench) -> None:
    """A timer without a signal is only logged; the next one ends the process."""
    child = bench.child()
    bench.set(child.pid, -2, "logged", 0)
    bench.set(child.pid, -1, "done", TERM)
    bench.set(child.pid, 0, "never", KILL)
    with capture_logs() as logs:
        assert await death(child) == -TERM

    assert [(log["scope"], log["then"]) for log in logs] == [
        ("logged", "nothing: it was set without signal"),
        ("done", "SIGTERM to this process"),
    ]
    assert "local_rank" not in logs[0]


async def test_process_below_a_worker(bench: Bench) -> None:
    """The process is signalled alone, and the log names the worker above it."""
    parent, child = bench.family()
    bench.watchdog.started(parent.pid, 5)
    bench.set(child, SOON_S)
    with capture_logs() as logs:
        assert await death(parent) == 0

    assert [(log["pid"], log["local_rank"]) for log in logs] == [(child, 5)]
    assert bench.watchdog.ended(parent.pid) is None


async def test_unread_release_counts(bench: Bench) -> None:
    """A release in the FIFO counts, even if the agent reads it after the expiry."""
    child = bench.child(0)
    bench.set(child.pid, SOON_S)
    await bench.read()
    bench.release(child.pid)
    bench.set(child.pid, LATER_S, "other")
    until_s = time.monotonic() + 2 * SOON_S
    while time.monotonic() < until_s:
        pass
    with capture_logs() as logs:
        bench.watchdog._expire()  # as if the lines arrived just before the loop calls this

    assert (child.poll(), logs) == (None, [])


async def test_process_elsewhere_is_not_signalled(bench: Bench) -> None:
    """A process that does not descend from the helper is not signalled, whatever a request says."""
    outside = bench.child(0)
    root, inside = bench.family()
    bench.root = root.pid
    bench.set(outside.pid, -1)
    bench.set(inside, 0)
    with capture_logs() as logs:
        assert await death(root) == 0

    assert {log["pid"]: log["then"] for log in logs} == {
        outside.pid: "nothing: the process is gone, or none of this agent's",
        inside: "SIGKILL to this process",
    }
    assert outside.poll() is None
    assert bench.watchdog.ended(outside.pid) is None


@pytest.mark.parametrize(
    "junk",
    [
        b"\n",
        b"no json\n" * 3,
        b"x" * (LINE_BYTES_MAX + 1) + b"\n",
        b"x" * 3 * LINE_BYTES_MAX + b"\n" + b"{}\n",
    ],
)
async def test_junk_is_skipped(bench: Bench, junk: bytes) -> None:
    """Junk is logged once; a request after it counts, even if it arrives in pieces."""
    child = bench.child()
    with capture_logs() as logs:
        bench.write(junk)
        whole = line(child.pid, 0)
        bench.write(whole[:20])
        await bench.read()
        bench.write(whole[20:])
        assert await death(child) == -KILL

    events = [log["event"] for log in logs]
    assert events == ["timer_request_skipped", "timer_expired"]


async def test_rest_of_a_long_line_is_no_request(bench: Bench) -> None:
    """The rest of a line that was too long is skipped, even if it looks like a request."""
    spared, child = bench.child(), bench.child()
    bench.write(b"x" * (LINE_BYTES_MAX + 1))
    await bench.read()
    bench.set(spared.pid, -1)
    bench.set(child.pid, 0)

    assert await death(child) == -KILL
    assert spared.poll() is None


async def test_pending_timers_are_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer beyond the limit is skipped and logged; pending ones can still be moved."""
    monkeypatch.setattr("rallypoint.agent.round.watchdog.TIMERS_MAX", 2)
    first, second, third = bench.child(), bench.child(), bench.child()
    with capture_logs() as logs:
        bench.set(first.pid, LATER_S)
        bench.set(second.pid, LATER_S)
        bench.set(third.pid, 0)
        bench.set(first.pid, 0)
        assert await death(first) == -KILL

    assert logs[0]["why"] == "more than 2 timers are pending"
    assert [second.poll(), third.poll()] == [None, None]


async def test_ended_workers_have_no_timers(bench: Bench) -> None:
    """Timers of an ended worker are forgotten, and all timers when the round was swept."""
    ended, swept, unread, last = (bench.child(local_rank) for local_rank in range(4))
    bench.set(ended.pid, SOON_S)
    bench.set(swept.pid, SOON_S)
    await bench.read()
    assert bench.watchdog.ended(ended.pid) is None
    bench.set(unread.pid, SOON_S)
    bench.watchdog.swept()
    bench.set(last.pid, 2 * SOON_S)

    assert await death(last) == -KILL
    assert [child.poll() for child in (ended, swept, unread)] == [None] * 3


AT_NS = 5_000_000_000


def worker_end(
    exit_code: int | None, signum: int | None, error: ErrorRecord | None, after_ms: int
) -> WorkerEnd:
    """Return an end that was seen this long after the expiry at AT_NS."""
    at_ns = AT_NS + after_ms * 1_000_000
    return WorkerEnd(exit_code, signum, at_ns=at_ns, is_kill_ours=False, error=error)


@pytest.mark.parametrize(
    ("claim", "before_exit_ms", "signum", "after_ms", "is_timer"),
    [
        ("the worker has recorded no error", None, KILL, 20, True),
        ("it recorded an error in its cleanup", 10, None, 20, True),
        ("it had failed before and hung in its cleanup", 500, KILL, 20, False),
        ("the signal ends it late", None, KILL, 60_000, True),
        ("it survived the signal", 10, None, 60_000, False),
        ("it survived the signal and recorded no error", None, None, 60_000, False),
    ],
)
def test_why_a_worker_failed(
    claim: str, before_exit_ms: int | None, signum: int | None, after_ms: int, is_timer: bool
) -> None:
    """The timer is the error of a worker, unless its own error came first or much later."""
    own = None if before_exit_ms is None else ErrorRecord("own", "", before_exit_ms)
    end = worker_end(1 if signum is None else None, signum, own, after_ms)

    explained = Expiry("timer", KILL, AT_NS).explain(end)

    assert explained.error == (ErrorRecord("timer", "", after_ms) if is_timer else own), claim
    assert explained.is_kill_ours


def test_success_needs_no_explanation() -> None:
    """A worker that exits with 0 after the signal of its timer has no error."""
    assert Expiry("timer", TERM, AT_NS).explain(worker_end(0, None, None, 20)).error is None
