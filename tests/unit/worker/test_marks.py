"""Marks of workers: each is reported once, and costs the training nothing when it is not heard."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rallypoint import worker
from rallypoint.client.calls.workers import Reached
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.worker import milestones
from rallypoint.worker.reporting import PAUSES_S, MilestoneReports
from support.clients.scripted import Caller
from support.clients.scripts import run_worker

ANSWER = worker_pb2.ReportProgressResponse()
IMPORTED, GROUPED = worker_pb2.MILESTONE_IMPORTED, worker_pb2.MILESTONE_PROCESS_GROUP


class Failed(grpc.RpcError):
    """A call that has failed."""


class Report:
    """A report that a test lets end."""

    def __init__(self, reached: dict[int, int]) -> None:
        self.reached = reached
        self.error: Exception | None = None
        self.is_done = False
        self.status = grpc.StatusCode.OK
        self._looks: list[Callable[[Any], None]] = []

    def add_done_callback(self, look: Callable[[Any], None]) -> None:
        self._looks.append(look)

    def done(self) -> bool:
        return self.is_done

    def result(self, timeout: float) -> Any:
        if not self.is_done:
            raise grpc.FutureTimeoutError
        if self.error is not None:
            raise self.error
        return ANSWER

    def code(self) -> grpc.StatusCode:
        return self.status

    def end(self, status: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        self.is_done, self.status = True, status
        self.error = None if status is grpc.StatusCode.OK else Failed()
        for look in self._looks:
            look(self)


class Reports:
    """A client that keeps its reports."""

    def __init__(self) -> None:
        self.sent: list[Report] = []
        self.pauses: list[tuple[float, Callable[[], None]]] = []
        self.now_s = 50.0

    def begin_report(
        self, job_id: str, step: int, timeout_s: float, *, reached: Reached, is_last: bool
    ) -> Report:
        assert ("j", 0, 3, 4) == (job_id, step, reached.rank, reached.world_size)
        self.sent.append(Report({int(one): ms for one, ms in reached.milestones.items()}))
        return self.sent[-1]

    def make(self) -> MilestoneReports:
        client: Any = self
        return MilestoneReports(
            client, "j", 3, 4, lambda: self.now_s, lambda *pause: self.pauses.append(pause)
        )


def test_what_was_reached_meanwhile_follows() -> None:
    """One report at a time; each says how long ago it was."""
    client = Reports()
    reports = client.make()
    client.now_s = 52.5
    reports.note({"imported": 50.0})
    reports.note({"process_group": 52.0})
    assert [{IMPORTED: 2_500}] == [one.reached for one in client.sent]
    client.now_s = 53.0
    client.sent[0].end()
    client.sent[1].end()
    reports.flush()

    assert [{IMPORTED: 2_500}, {GROUPED: 1_000}] == [one.reached for one in client.sent]


def test_report_that_no_coordinator_has_heard_is_repeated() -> None:
    """After pauses that grow, and with an end; its age grows too."""
    client = Reports()
    client.make().note({"imported": 50.0})
    for _ in range(len(PAUSES_S)):
        client.sent[-1].end(grpc.StatusCode.UNAVAILABLE)
        pause_s, again = client.pauses[-1]
        client.now_s += pause_s
        again()
    client.sent[-1].end(grpc.StatusCode.UNAVAILABLE)

    lengths = [pause_s for pause_s, _ in client.pauses]
    assert [True] * len(PAUSES_S) == [
        0.5 * base <= found <= 1.5 * base for base, found in zip(PAUSES_S, lengths, strict=True)
    ]
    assert len(PAUSES_S) + 1 == len(client.sent)
    assert round(sum(lengths) * 1_000) == client.sent[-1].reached[IMPORTED]


def test_refused_report_is_not_repeated() -> None:
    """Its round is over; the end of the process makes one last attempt."""
    client = Reports()
    reports = client.make()
    reports.note({"imported": 50.0})
    client.sent[0].end(grpc.StatusCode.ABORTED)
    assert (1, []) == (len(client.sent), client.pauses)
    reports.flush()

    assert 2 == len(client.sent)


MARKS = """
import sys
from rallypoint import worker
worker.mark("imported")
worker.mark("imported")
worker.mark("process_group")
assert "grpc" not in sys.modules and "threading" not in sys.modules
"""


@pytest.mark.parametrize("rank", [0, 1])
async def test_marks_are_reported_with_the_first_step(
    at: Caller, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Each once, with the rank and the token, also when the process ends at once."""
    monkeypatch.setenv("RANK", str(rank))
    at.script.answers["ReportProgress"] = [ANSWER] * 3
    done = await asyncio.to_thread(run_worker, MARKS + "worker.progress(4); worker.progress(5)")
    requests = [one for one in at.script.requests["ReportProgress"] if one.milestones]
    found = [one for request in requests for one in request.milestones]

    assert ("", 0) == (done.stderr, done.returncode)
    assert {("j", 0, rank, 2)} == {
        (one.job_id, one.step, one.rank, one.world_size) for one in requests
    }
    assert [IMPORTED, GROUPED] == sorted(one.milestone for one in found)
    assert all("secret" in one.values() for one in at.script.metadata)


async def test_mark_after_the_first_call_is_reported_at_once(at: Caller) -> None:
    """gRPC is loaded by then, so it costs nothing."""
    at.script.answers["Arrive"] = [barrier_pb2.ArriveResponse(epoch=7, participant_count=2)]
    at.script.answers["ReportProgress"] = [ANSWER]
    program = (
        "import time\nfrom rallypoint import worker\nworker.barrier()\nworker.mark('imported')"
    )
    done = await asyncio.to_thread(run_worker, program)
    (request,) = at.script.requests["ReportProgress"]

    assert ("", 0) == (done.stderr, done.returncode)
    assert [IMPORTED] == [one.milestone for one in request.milestones]


def test_mark_without_a_coordinator_costs_nothing(notice_file: Any) -> None:
    """Nothing is printed, and the process ends as it wants to."""
    done = run_worker(MARKS + "worker.progress(1); raise SystemExit(3)")

    assert ("", "", 3) == (done.stdout, done.stderr, done.returncode)


FORKS = (
    MARKS
    + """
import os
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        worker.mark("imported")
        os._exit(0 if "grpc" not in sys.modules else 1)
    assert os.waitpid(pid, 0)[1] == 0
print("done")
"""
)


def test_processes_may_be_forked_after_a_mark(notice_file: Any) -> None:
    """Such as those of a data loader: nothing was loaded, and no thread runs."""
    done = run_worker(FORKS)

    assert ("done\n", "") == (done.stdout, done.stderr)


def test_unknown_name_is_refused(notice_file: Any) -> None:
    """A typing error in a script shows at once."""
    name: Any = "import"
    with pytest.raises(ValueError, match="no milestone 'import': use one of imported, "):
        worker.mark(name)


@pytest.fixture
def mark_pipe(notice_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The agent's end of a FIFO that this worker finds in its environment."""
    path = notice_file.with_name("marks")
    os.mkfifo(path)
    monkeypatch.setenv("RALLYPOINT_MARK_PIPE", str(path))
    monkeypatch.setenv("RALLYPOINT_ROUND", "4")
    monkeypatch.setenv("RALLYPOINT_LOCAL_RANK", "1")
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield fd
    os.close(fd)


def read_marks(fd: int) -> list[tuple[str, ...]]:
    """Return what was written, without the times, which are those of this machine's clock."""
    marks = [mark_.split(" ") for mark_ in os.read(fd, 65_536).decode().split("\n") if mark_]
    assert all(abs(time.monotonic() - int(words[3]) / 1000) < 600 for words in marks)
    return [tuple(words[:3]) for words in marks]


ALONE = MARKS + 'worker.progress(1); worker.progress(2)\nassert "grpc" not in sys.modules'


def test_agent_learns_of_marks_without_a_connection(
    mark_pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once; progress needs no network then, but on rank 0."""
    monkeypatch.setenv("RANK", "1")
    done = run_worker(ALONE)

    assert ("", 0) == (done.stderr, done.returncode)
    assert [("4", "1", "imported"), ("4", "1", "process_group")] == read_marks(mark_pipe)


async def test_coordinator_learns_nothing_that_the_agent_knows(at: Caller, mark_pipe: int) -> None:
    """Also when gRPC is loaded, before the mark or after it."""
    at.script.answers["Arrive"] = [barrier_pb2.ArriveResponse(epoch=7, participant_count=2)]
    program = (
        "from rallypoint import worker\nworker.mark('imported')\nworker.barrier()\n"
        "worker.mark('process_group')"
    )
    done = await asyncio.to_thread(run_worker, program)

    assert ("", 0) == (done.stderr, done.returncode)
    assert [("4", "1", "imported"), ("4", "1", "process_group")] == read_marks(mark_pipe)
    assert [] == at.script.requests.get("ReportProgress", [])


def test_full_fifo_is_tried_again(mark_pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next call; nothing waits for it, and the time is that of the mark."""
    monkeypatch.setattr(milestones, "_noted", {})
    monkeypatch.setattr(milestones, "_waiting", set())
    while True:
        try:
            os.write(mark_pipe, b"x" * 4_096)
        except BlockingIOError:
            break
    worker.mark("imported")
    assert milestones.is_waiting()
    at_ms = int(milestones._noted[os.getpid(), "imported"] * 1000)
    os.read(mark_pipe, 1 << 20)
    milestones.report()

    assert not milestones.is_waiting()
    assert f"\n4 1 imported {at_ms}\n".encode() == os.read(mark_pipe, 100)


async def test_without_its_agent_a_worker_reports_to_the_coordinator(
    at: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No one reads the FIFO, or it is gone, or it is out of reach."""
    unread = tmp_path / "unread"
    os.mkfifo(unread)
    for path in (unread, tmp_path / "gone", tmp_path):
        monkeypatch.setenv("RALLYPOINT_MARK_PIPE", str(path))
        at.script.requests["ReportProgress"].clear()
        at.script.answers["ReportProgress"] = [ANSWER] * 3
        done = await asyncio.to_thread(run_worker, MARKS + "worker.progress(4)")
        requests = at.script.requests["ReportProgress"]

        assert ("", 0) == (done.stderr, done.returncode)
        assert [IMPORTED, GROUPED] == sorted(
            one.milestone for request in requests for one in request.milestones
        )
