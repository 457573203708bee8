"""`--wait`: what it prints, when it ends, and with which exit code."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from google.protobuf.duration_pb2 import Duration

from rallypoint.cli.operator import app
from rallypoint.cli.operator.changes import waiting
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.reads.following import Change, Changes
from rallypoint.client.errors import NotAllowed, RallypointError, Unavailable, UnknownJob
from rallypoint.v1 import job_pb2, node_pb2, round_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import node_service_pb2 as nodes_pb2

RUNNING, STOPPING = job_pb2.JOB_PHASE_RUNNING, job_pb2.JOB_PHASE_STOPPING
CLOSED = job_pb2.JOB_PHASE_CLOSED
ONE = Duration(seconds=1)
STOPPED = "j: round 1 is being stopped; the next one starts the workers again\n"


def job(
    round: int, phase: job_pb2.JobPhase.ValueType = RUNNING, **fields: Any
) -> jobs_pb2.WatchJobResponse:
    header = round_pb2.RoundHeader(number=round, group_world_size=2, world_size=2)
    shown = round_pb2.Round(header=header, started_after=ONE)
    known = {"job_id": "j", "run": 1, "phase": phase, "node_count": 2, "round": shown}
    return jobs_pb2.WatchJobResponse(job=job_pb2.Job(**{**known, **fields}), revision=round)


class Watch:
    """Answers of the coordinator, then an error, the end of the stream, or silence.

    Each comes when the command has looked at the one before: it would merge them.
    """

    def __init__(
        self,
        answers: list[Any],
        *,
        looked: threading.Semaphore,
        closed: threading.Event,
        is_silent: bool = False,
    ) -> None:
        self._answers = answers
        self._looked = looked
        self._closed = closed
        self._is_silent = is_silent

    def __enter__(self) -> Iterator[Any]:
        return self._read()

    def __exit__(self, *_: object) -> None:
        return None

    def _read(self) -> Iterator[Any]:
        for answer in self._answers:
            if isinstance(answer, RallypointError):
                raise answer
            yield answer
            assert self._looked.acquire(timeout=30)
        if self._is_silent:
            assert self._closed.wait(30)


@pytest.fixture
def closed() -> threading.Event:
    """Return what is set when the client of the wait is closed."""
    return threading.Event()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Return what is released whenever the command has looked at a change."""
    looked, get = threading.Semaphore(0), Changes.get
    taken: list[Change] = []

    def get_next(changes: Changes, timeout: float | None = None) -> Change:
        if taken:
            taken.clear()
            looked.release()
        change = get(changes, timeout)
        taken.append(change)
        return change

    monkeypatch.setattr(Changes, "get", get_next)
    return looked


Watched = Callable[..., None]


@pytest.fixture
def client(
    monkeypatch: pytest.MonkeyPatch, closed: threading.Event, looked: threading.Semaphore
) -> MagicMock:
    """Return a client whose restart has stopped round 1."""

    def close() -> None:
        closed.set()
        looked.release()

    summary = job_pb2.JobSummary(job_id="j", run=1, round=1, phase=STOPPING)
    made = MagicMock(close=Mock(side_effect=close))
    made.restart_job.return_value = jobs_pb2.RestartJobResponse(job=summary)
    made.__enter__.return_value = made
    monkeypatch.setattr(Invocation, "check_reachable", lambda self: None)
    monkeypatch.setattr(Invocation, "open_client", lambda self, limit_s: made)
    return made


@pytest.fixture
def watched(client: MagicMock, closed: threading.Event, looked: threading.Semaphore) -> Watched:
    """Return what sets what each watch in turn receives; the last one is then silent."""

    def set_answers(*watches: list[Any], is_silent: bool = True) -> None:
        closed.clear()
        early = [Watch(one, looked=looked, closed=closed) for one in watches[:-1]]
        last = Watch(watches[-1], looked=looked, closed=closed, is_silent=is_silent)
        client.watch_job.side_effect = [*early, last]

    return set_answers


def lines_without_times(text: str) -> list[str]:
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in text.splitlines()]


def test_each_new_state_is_a_line(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe, between what was done and what has come true."""
    watched([job(1, STOPPING), job(1, STOPPING, restart_count=0), job(2)])

    assert app.main("restart", ["j", "--wait"]) == 0
    assert lines_without_times(capsys.readouterr().out) == [
        STOPPED.rstrip(),
        "j, stopping, round 1, 2 workers, 2 nodes",
        "j: round 2 runs 2 workers on 2 nodes",
    ]


def test_an_outage_does_not_end_a_wait(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is followed again, from what was seen."""
    monkeypatch.setattr("rallypoint.cli.operator.reads.following.AGAIN_S", 0.0)
    watched([job(1, STOPPING), Unavailable("nothing answers")], [job(2)])

    assert app.main("restart", ["j", "--wait"]) == 0
    assert capsys.readouterr().out.endswith("\nj: round 2 runs 2 workers on 2 nodes\n")


def test_time_that_is_over_has_its_exit_code(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says how far it is, and that the change continues."""
    watched([job(1, STOPPING)])

    assert app.main("restart", ["j", "--wait-timeout", "0.05"]) == 4
    assert re.sub(r"50ms(: j, [^;]*)?", "50ms", capsys.readouterr().err) == (
        "rallypoint restart: error: not done after 50ms; the change continues: "
        "rallypoint status j\n"
    )


def test_what_cannot_come_true_any_more_is_an_error(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that has ended has no next round."""
    watched([job(1, CLOSED, outcome=job_pb2.OUTCOME_ABANDONED, node_count=0)])

    assert app.main("restart", ["j", "--wait"]) == 1
    assert capsys.readouterr().err == (
        "rallypoint restart: error: run 1 of job j has ended meanwhile (abandoned)\n"
    )


@pytest.mark.parametrize(
    ("answers", "code", "end"),
    [
        ([], 1, "run 1 of job j has ended meanwhile\n"),
        ([UnknownJob("there is no job 'j'", job_id="j")], 1, "has ended meanwhile\n"),
        ([NotAllowed("'v' may not read")], 77, "'v' may not read\n"),
    ],
)
def test_watch_that_ends_ends_the_wait(
    client: MagicMock,
    watched: Watched,
    capsys: pytest.CaptureFixture[str],
    answers: list[Any],
    code: int,
    end: str,
) -> None:
    """With the run, with the job, or with the right to read it."""
    if answers:
        answers[0].status = "NOT_FOUND" if code == 1 else "PERMISSION_DENIED"
    watched(answers, is_silent=False)

    assert app.main("restart", ["j", "--wait"]) == code
    assert capsys.readouterr().err.endswith(end)


def test_ctrl_c_ends_the_wait_and_not_the_change(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, with where to look."""
    watched([job(1, STOPPING)])
    monkeypatch.setattr(waiting, "_wait", Mock(side_effect=KeyboardInterrupt))

    assert app.main("restart", ["j", "--wait"]) == 130
    assert capsys.readouterr().err == (
        "the wait is over, and the change continues: rallypoint status j\n"
    )


def test_json_is_the_answer_with_the_job_as_it_is_then(
    client: MagicMock, watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    """One document, also when the time is over."""
    later = job_pb2.JobSummary(job_id="j", run=1, round=2, phase=RUNNING)
    client.get_job.return_value = jobs_pb2.GetJobResponse(summary=later)
    watched([job(2)])
    assert app.main("restart", ["j", "--wait", "-o", "json"]) == 0
    done = json.loads(capsys.readouterr().out)["job"]
    client.get_job.side_effect = Unavailable("nothing answers")
    client.restart_job.return_value.job.round = 1
    watched([job(1, STOPPING)])
    assert app.main("restart", ["j", "--wait-timeout", "0.05", "-o", "json"]) == 4
    late = json.loads(capsys.readouterr().out)["job"]

    assert (done["round"], done["phase"]) == ("2", "JOB_PHASE_RUNNING")
    assert late["round"] == "1"


def test_nothing_to_wait_for_ends_at_once(
    client: MagicMock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the number of restarts."""
    client.update_job.return_value = jobs_pb2.UpdateJobResponse(
        job=job_pb2.JobSummary(job_id="j", run=1, max_restarts=5)
    )

    assert app.main("resize", ["j", "--max-restarts", "5", "--wait"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    client.watch_job.assert_not_called()


def test_drained_nodes_are_awaited_together(
    client: MagicMock, watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while the coordinator does not answer for a moment."""
    client.drain_node.return_value = nodes_pb2.DrainNodeResponse(time_left=ONE)
    leaving = [node_pb2.Node(name=name, drain_time_left=ONE) for name in "ab"]
    client.list_nodes.side_effect = [leaving, Unavailable("nothing answers"), leaving[1:], []]
    watched([job(1), job(1), job(2), job(2)])

    assert app.main("drain", ["j", "a", "b", "a", "--wait"]) == 0
    assert lines_without_times(capsys.readouterr().out) == [
        "j: node a drains; workers that still run are stopped in 1.0s",
        "j: node b drains; workers that still run are stopped in 1.0s",
        "nodes a, b have not left: j, running, round 1, 2 workers, 2 nodes",
        "nothing answers",
        "node b has not left: j, running, round 2, 2 workers, 2 nodes",
        "j: nodes a, b have left",
    ]


def test_json_of_drained_nodes_says_that_they_have_left(
    client: MagicMock, watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    """As another request to drain them would."""
    client.drain_node.return_value = nodes_pb2.DrainNodeResponse(time_left=ONE)
    client.list_nodes.return_value = []
    watched([job(1)])

    assert app.main("drain", ["j", "a", "--wait", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"timeLeft": "0s"}]
