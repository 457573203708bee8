"""Timers of workers: what comes through the FIFO, who is signalled when, and where the FIFO is."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rallypoint.agent.core.model import ErrorRecord
from rallypoint.agent.timers import (
    LINE_BYTES_MAX,
    Expiry,
    Request,
    TimerFileRefused,
    Timers,
    parse_request,
    timer_file,
)

KILL, TERM = int(signal.SIGKILL), int(signal.SIGTERM)
SOON_S = 0.05
LATER_S = 600.0


class Bench:
    """Timers of processes below this one, with a FIFO and children to be timed."""

    def __init__(self, path: Path) -> None:
        self.root = os.getpid()
        self.timers = Timers(lambda: self.root)
        self.timers.open(str(path))
        self._client = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        self.children: list[subprocess.Popen[bytes]] = []

    def child(self, local_rank: int | None = None) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(["sleep", "1000"])
        self.children.append(child)
        if local_rank is not None:
            self.timers.started(child.pid, local_rank)
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
        self.timers.close()
        for child in self.children:
            child.kill()
            child.wait()


def line(pid: int, expires_s: float, scope: str = "step", signum: int = KILL) -> bytes:
    said = {
        "version": 1,
        "pid": pid,
        "scope_id": scope,
        "expiration_time": expires_s,
        "signal": signum,
    }
    return json.dumps(said).encode() + b"\n"


async def death(child: subprocess.Popen[bytes]) -> int:
    """Wait until a child has died, while the loop goes on; return its status."""
    async with asyncio.timeout(10):
        return await asyncio.to_thread(child.wait)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "timers")
    yield bench
    bench.close()


@pytest.mark.parametrize(
    ("said", "request_"),
    [
        (line(7, 12.5, "a b", 9), Request(7, "a b", 12.5, 9)),
        (line(7, -1, "a", 0), Request(7, "a", -1.0, 0)),
        (line(7, 12, "", -3), Request(7, "", 12.0, -3)),
        (b'{"pid":7,"scope_id":"s","expiration_time":1,"signal":9}', Request(7, "s", 1.0, 9)),
        (b"", None),
        (b"\xff\xfe", None),
        (b"[1, 2]", None),
        (b"[" * 4_000, None),
        (b'{"pid": 7}', None),
        (line(1, 12.5), None),
        (line(7, float("nan")), None),
        (line(7, 10**400), None),
        (line(7, 12.5, "a", 65), None),
        (line(7, 12.5).replace(b"7", b'"7"'), None),
    ],
)
def test_request_of_a_client(said: bytes, request_: Request | None) -> None:
    """A line is a request of torch's client, or nothing."""
    assert parse_request(said) == request_


async def test_only_who_is_too_late_is_signalled(bench: Bench) -> None:
    """One of three processes of a worker's kind does not release its timer: it gets its signal."""
    late, done, later = (bench.child(local_rank) for local_rank in range(3))
    bench.set(done.pid, SOON_S)
    bench.set(later.pid, LATER_S)
    bench.set(late.pid, LATER_S, "epoch", TERM)
    bench.set(late.pid, SOON_S, "step", KILL)
    bench.release(done.pid)
    with capture_logs() as logs:
        assert await death(late) == -KILL
    expiry = bench.timers.ended(late.pid)

    assert expiry is not None and expiry.signum == KILL
    assert expiry.text.startswith("timer 'step' expired: not released within 0.")
    assert [(log["event"], log["pid"], log["local_rank"], log["scope"]) for log in logs] == [
        ("timer_expired", late.pid, 0, "step")
    ]
    assert 0 <= logs[0]["late_ms"] < 5_000
    assert [done.poll(), later.poll()] == [None, None]
    assert [bench.timers.ended(child.pid) for child in (done, later)] == [None, None]


async def test_first_timer_with_a_signal_counts(bench: Bench) -> None:
    """One without a signal is only said to have expired; the next one ends the process."""
    child = bench.child()
    bench.set(child.pid, -2, "said", 0)
    bench.set(child.pid, -1, "done", TERM)
    bench.set(child.pid, 0, "never", KILL)
    with capture_logs() as logs:
        assert await death(child) == -TERM

    assert [(log["scope"], log["then"]) for log in logs] == [
        ("said", "nothing: it was set without signal"),
        ("done", "SIGTERM to this process"),
    ]
    assert "local_rank" not in logs[0]


async def test_process_below_a_worker(bench: Bench) -> None:
    """It alone is signalled, and the log says below which worker it is."""
    parent, child = bench.family()
    bench.timers.started(parent.pid, 5)
    bench.set(child, SOON_S)
    with capture_logs() as logs:
        assert await death(parent) == 0

    assert [(log["pid"], log["local_rank"]) for log in logs] == [(child, 5)]
    assert bench.timers.ended(parent.pid) is None


async def test_release_that_is_not_read_yet_counts(bench: Bench) -> None:
    """An agent that was held up for longer than a timer lets nobody pay for it."""
    child = bench.child(0)
    bench.set(child.pid, SOON_S)
    await bench.read()
    bench.release(child.pid)
    bench.set(child.pid, LATER_S, "other")
    until_s = time.monotonic() + 2 * SOON_S
    while time.monotonic() < until_s:
        pass
    with capture_logs() as logs:
        bench.timers._expire()  # as when the lines come while the loop is on its way to this

    assert (child.poll(), logs) == (None, [])


async def test_stranger_is_not_signalled(bench: Bench) -> None:
    """A process that is not below the root is none of ours, whatever somebody has written."""
    stranger = bench.child(0)
    root, inside = bench.family()
    bench.root = root.pid
    bench.set(stranger.pid, -1)
    bench.set(inside, 0)
    with capture_logs() as logs:
        assert await death(root) == 0

    assert {log["pid"]: log["then"] for log in logs} == {
        stranger.pid: "nothing: the process is gone, or none of this agent's",
        inside: "SIGKILL to this process",
    }
    assert stranger.poll() is None
    assert bench.timers.ended(stranger.pid) is None


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
    """It is said once, and what comes after is heeded, in however many pieces."""
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


async def test_rest_of_a_line_that_is_too_long_is_no_line(bench: Bench) -> None:
    """What looks like a request in it is none."""
    spared, child = bench.child(), bench.child()
    bench.write(b"x" * (LINE_BYTES_MAX + 1))
    await bench.read()
    bench.set(spared.pid, -1)
    bench.set(child.pid, 0)

    assert await death(child) == -KILL
    assert spared.poll() is None


async def test_pending_timers_are_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is skipped, and said to be; those that are there can still be moved."""
    monkeypatch.setattr("rallypoint.agent.timers.TIMERS_MAX", 2)
    first, second, third = bench.child(), bench.child(), bench.child()
    with capture_logs() as logs:
        bench.set(first.pid, LATER_S)
        bench.set(second.pid, LATER_S)
        bench.set(third.pid, 0)
        bench.set(first.pid, 0)
        assert await death(first) == -KILL

    assert logs[0]["why"] == "more than 2 timers are pending"
    assert [second.poll(), third.poll()] == [None, None]


async def test_what_is_over_is_forgotten(bench: Bench) -> None:
    """Timers of a worker that has ended, and of a round that has, read or not."""
    ended, swept, unread, last = (bench.child(local_rank) for local_rank in range(4))
    bench.set(ended.pid, SOON_S)
    bench.set(swept.pid, SOON_S)
    await bench.read()
    assert bench.timers.ended(ended.pid) is None
    bench.set(unread.pid, SOON_S)
    bench.timers.clear()
    bench.set(last.pid, 2 * SOON_S)

    assert await death(last) == -KILL
    assert [child.poll() for child in (ended, swept, unread)] == [None] * 3


AT_NS = 5_000_000_000


@pytest.mark.parametrize(
    ("claim", "before_exit_ms", "signum", "after_ms", "is_timer"),
    [
        ("nothing else is known", None, KILL, 20, True),
        ("it wrote an error while it cleaned up", 10, None, 20, True),
        ("it had failed before and hung in its cleanup", 500, KILL, 20, False),
        ("it dies of it late", None, KILL, 60_000, True),
        ("it survived it", 10, None, 60_000, False),
        ("it survived it and says nothing", None, None, 60_000, False),
    ],
)
def test_why_a_worker_failed(
    claim: str, before_exit_ms: int | None, signum: int | None, after_ms: int, is_timer: bool
) -> None:
    """The timer explains the end of a worker unless its own error came first, or much later."""
    own = None if before_exit_ms is None else ErrorRecord("own", "", before_exit_ms)
    seen_ns = AT_NS + after_ms * 1_000_000

    record = Expiry("timer", KILL, AT_NS).explain(own, signum=signum, seen_ns=seen_ns)

    assert record == (ErrorRecord("timer", "", after_ms) if is_timer else own), claim


# --- where the FIFO is ---


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({}, ""),
        ({"TORCHELASTIC_TIMER_FILE": "/x/f"}, ""),
        ({"TORCHELASTIC_ENABLE_FILE_TIMER": "0", "TORCHELASTIC_TIMER_FILE": "/x/f"}, ""),
        ({"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}, "/own/timers"),
        ({"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": ""}, "/own/timers"),
        ({"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": "/x/f"}, "/x/f"),
        (
            {
                "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
                "TORCHELASTIC_TIMER_FILE": "/x/f",
                "TORCHELASTIC_RUN_ID": "around",
            },
            "/own/timers",
        ),
    ],
)
def test_where_timers_are(environment: dict[str, str], path: str) -> None:
    """Only with torchrun's switch; where the operator says, or in the agent's own folder.

    What an agent inherits that runs in a worker is the file of the launcher around it.
    """
    assert timer_file(environment, lambda: Path("/own")) == path


def test_no_place_for_timers_is_an_error_of_the_operators() -> None:
    """Without a folder for temporary files the agent says so, and ends in order."""

    def folder() -> Path:
        raise FileNotFoundError(2, "No usable temporary directory found in []")

    with pytest.raises(TimerFileRefused, match="No usable temporary directory"):
        timer_file({"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}, folder)


async def test_fifo_is_there_while_it_is_read(tmp_path: Path) -> None:
    """It is ours alone; one that was left behind is replaced; it goes at the end."""
    path = tmp_path / "timers"
    os.mkfifo(path, 0o644)
    timers = Timers(os.getpid)
    timers.open(str(path))

    assert (path.is_fifo(), path.stat().st_mode & 0o777) == (True, 0o600)
    with pytest.raises(TimerFileRefused, match="in use"):
        Timers(os.getpid).open(str(path))
    timers.close()
    assert not path.exists()


async def test_file_of_another_kind_is_kept(tmp_path: Path) -> None:
    """Whatever is there that is no FIFO is left alone, at the beginning and at the end."""
    path = tmp_path / "timers"
    path.write_text("mine")
    with pytest.raises(TimerFileRefused, match=r"TIMER_FILE=.*/timers: it exists and is no FIFO"):
        Timers(os.getpid).open(str(path))
    with pytest.raises(TimerFileRefused, match="No such file or directory"):
        Timers(os.getpid).open(str(tmp_path / "nowhere" / "timers"))
    timers = Timers(os.getpid)
    path.rename(tmp_path / "kept")
    timers.open(str(path))
    path.unlink()
    path.write_text("later")
    timers.close()

    assert path.read_text() == "later"
