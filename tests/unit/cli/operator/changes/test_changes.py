"""What changes of jobs and nodes print, and what a refusal suggests."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from google.protobuf.duration_pb2 import Duration

from rallypoint.cli.operator import app
from rallypoint.cli.operator.changes import words
from rallypoint.cli.operator.explanations import suggest
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.client.errors import (
    NotAllowed,
    RallypointError,
    Refused,
    UnknownJob,
    UnknownNode,
)
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import node_service_pb2 as nodes_pb2


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a client that a test gives its answers."""
    made = Mock(
        list_jobs=Mock(return_value=[job_pb2.JobSummary(job_id="train")]),
        list_nodes=Mock(return_value=[node_pb2.Node(name="node-a")]),
    )
    monkeypatch.setattr(Invocation, "check_reachable", lambda self: None)
    monkeypatch.setattr(Invocation, "open_client", lambda self, limit_s: made)
    return made


def summary(**fields: Any) -> job_pb2.JobSummary:
    known = {"job_id": "j", "run": 2, "round": 7, "phase": job_pb2.JOB_PHASE_RUNNING}
    return job_pb2.JobSummary(**{**known, **fields})


CLOSED = {"phase": job_pb2.JOB_PHASE_CLOSED}
CANCELLED = {**CLOSED, "outcome": job_pb2.OUTCOME_CANCELLED}


@pytest.mark.parametrize(
    ("run", "job", "line"),
    [
        (0, summary(**CANCELLED), "j: run 2 is cancelled"),
        (
            0,
            summary(**CANCELLED, node_count=1),
            "j: run 2 is cancelled; its node stops the workers, and the agents exit with 94",
        ),
        (
            2,
            summary(**CANCELLED, node_count=3),
            "j: run 2 is cancelled; its 3 nodes stop the workers, and the agents exit with 94",
        ),
        (
            0,
            summary(**CLOSED, outcome=job_pb2.OUTCOME_SUCCEEDED),
            "j: run 2 has ended already (succeeded); there is nothing to cancel",
        ),
        (1, summary(), "j: run 2 is the latest, not 1; nothing was done"),
        (0, job_pb2.JobSummary(), "j: it was deleted meanwhile"),
    ],
)
def test_a_cancellation_is_a_line(run: int, job: job_pb2.JobSummary, line: str) -> None:
    """Also the second one, and one that comes too late."""
    assert words.describe_cancel("j", run, job) == line


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (summary(**CANCELLED), "j: run 2 is cancelled; silent nodes are given up"),
        (
            summary(**CLOSED, outcome=job_pb2.OUTCOME_FAILED),
            "j: run 2 has ended already (failed); silent nodes are given up",
        ),
    ],
)
def test_a_forced_cancellation_gives_up_silent_nodes(
    client: Mock, capsys: pytest.CaptureFixture[str], job: job_pb2.JobSummary, line: str
) -> None:
    """Also those of a run that has ended."""
    client.cancel_job.return_value = jobs_pb2.CancelJobResponse(job=job)
    assert app.main("cancel", ["j", "--force"]) == 0

    assert capsys.readouterr().out == f"{line}\n"
    assert client.cancel_job.call_args.kwargs["give_up_silent_nodes"] is True


@pytest.mark.parametrize("words", [("cancel", "--run", "1"), ("restart", "--round", "6")])
def test_what_is_not_the_latest_is_left_alone(
    client: Mock, capsys: pytest.CaptureFixture[str], words: tuple[str, str, str]
) -> None:
    """Nothing was done, so it is exit code 1; JSON has the answer all the same."""
    command, flag, number = words
    client.cancel_job.return_value = jobs_pb2.CancelJobResponse(job=summary())
    client.restart_job.return_value = jobs_pb2.RestartJobResponse(job=summary())
    assert app.main(command, ["j", flag, number, "--wait"]) == 1
    shown = capsys.readouterr()
    assert app.main(command, ["j", flag, number, "-o", "json"]) == 1
    latest = {"cancel": 2, "restart": 7}[command]

    assert shown.out == ""
    assert shown.err == (
        f"rallypoint {command}: error: j: {flag[2:]} {latest} is the latest, not {number}; "
        "nothing was done\n"
    )
    assert json.loads(capsys.readouterr().out)["job"]["jobId"] == "j"


@pytest.mark.parametrize(
    ("round", "job", "line"),
    [
        (
            0,
            summary(phase=job_pb2.JOB_PHASE_STOPPING),
            "j: round 7 is being stopped; the next one starts the workers again",
        ),
        (6, summary(), "j: round 7 is the latest, not 6; nothing was done"),
        (
            0,
            summary(phase=job_pb2.JOB_PHASE_FORMING, waiting="1 of 2 required nodes are ready"),
            "j: the next round begins as soon as it can: 1 of 2 required nodes are ready",
        ),
        (0, job_pb2.JobSummary(), "j: it was deleted meanwhile"),
    ],
)
def test_a_restart_is_a_line(round: int, job: job_pb2.JobSummary, line: str) -> None:
    """It says which round it has stopped, or that it has stopped none."""
    assert words.describe_restart("j", round, job) == line


def test_a_resize_is_a_line() -> None:
    """With what was changed, and with the round that it stops."""
    nodes = jobs_pb2.JobUpdate(min_nodes=1, max_nodes=2)
    restarts = jobs_pb2.JobUpdate(max_restarts=5)
    job = summary(min_nodes=1, max_nodes=2, node_count=3, max_restarts=5, restart_count=1)
    stopping = summary(phase=job_pb2.JOB_PHASE_STOPPING, min_nodes=2, max_nodes=2, node_count=3)

    assert words.describe_resize("j", nodes, job) == "j: it takes 1:2 nodes now, and has 3"
    assert words.describe_resize("j", restarts, job) == "j: it may restart 5 times, 1 of them used"
    assert words.describe_resize("j", nodes, summary(min_nodes=1, max_nodes=1)) == (
        "j: it takes 1 node now, and has 0"
    )
    assert words.describe_resize("j", nodes, stopping) == (
        "j: it takes 2 nodes now, and has 3; round 7 is being stopped"
    )


def test_nodes_are_changed_in_order(client: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    """Each once, with the reason, and with a line or an answer each."""
    client.drain_node.return_value = nodes_pb2.DrainNodeResponse(time_left=Duration(seconds=90))
    arguments = ["j", "b", "a", "b", "--drain-timeout", "90", "-r", "new kernel"]
    assert app.main("drain", arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert app.main("drain", [*arguments, "-o", "json"]) == 0

    assert lines == [
        f"j: node {name} drains; workers that still run are stopped in 1m30s" for name in "ba"
    ]
    assert json.loads(capsys.readouterr().out) == [{"timeLeft": "90s"}] * 2
    client.drain_node.assert_called_with("j", "a", drain_timeout_s=90.0, reason="new kernel")


def test_a_refusal_shows_what_was_done_before(
    client: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nodes before it are changed, those after it are not."""
    client.cordon_node.side_effect = [
        nodes_pb2.CordonNodeResponse(connected=True),
        Refused("no more cordons"),
    ]
    assert app.main("cordon", ["j", "a", "b", "c"]) == 1
    found = capsys.readouterr()

    assert found.out == "j: node a is cordoned; later rounds do not include it\n"
    assert found.err == "rallypoint cordon: error: no more cordons\n"
    assert client.cordon_node.call_count == 2


def refusal(error: RallypointError, constant: str = "") -> RallypointError:
    error.refusal = constant
    return error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            UnknownJob("there is no job 'tarin'", job_id="tarin"),
            3,
            "there is no job 'tarin'; did you mean 'train'?",
        ),
        (
            UnknownJob("there is no job 'x'", job_id="x"),
            3,
            "there is no job 'x'; list them: rallypoint jobs",
        ),
        (
            UnknownNode("no node 'nodea'", job_id="train", node_name="nodea"),
            3,
            "no node 'nodea'; did you mean 'node-a'?",
        ),
        (
            UnknownNode("no node 'x'", job_id="train", node_name="x"),
            3,
            "no node 'x'; list them: rallypoint status train",
        ),
        (
            refusal(NotAllowed("'v' is viewer"), "ROLE_NOT_ALLOWED"),
            77,
            "'v' is viewer; use the token of such a role: --token-file FILE",
        ),
        (Refused("why"), 1, "why"),
    ],
)
def test_a_refusal_has_a_next_step(
    client: Mock,
    capsys: pytest.CaptureFixture[str],
    error: RallypointError,
    code: int,
    line: str,
) -> None:
    """Near names, or how to find them."""
    client.cancel_job.side_effect = error

    assert app.main("cancel", ["j"]) == code
    assert capsys.readouterr().err == f"rallypoint cancel: error: {line}\n"


def test_no_names_spoil_no_message(client: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    """A list that fails, or is empty, suggests nothing."""
    client.cancel_job.side_effect = UnknownJob("there is no job 'x'", job_id="x")
    client.list_jobs.side_effect = NotAllowed("no")
    app.main("cancel", ["x"])
    failed = capsys.readouterr().err
    client.list_jobs.side_effect = None
    client.list_jobs.return_value = []
    app.main("cancel", ["x"])

    assert failed == "rallypoint cancel: error: there is no job 'x'\n"
    assert capsys.readouterr().err.endswith("'x'; the coordinator has no jobs\n")


@pytest.mark.parametrize(
    ("wanted", "names", "text"),
    [
        ("trian", ["train", "eval"], "did you mean 'train'?"),
        ("TRAIN", ["train"], "did you mean 'train'?"),
        ("tr", ["train-1", "train-2"], "did you mean 'train-1' or 'train-2'?"),
        ("xyz", ["train"], ""),
        ("xyz", [], ""),
    ],
)
def test_near_names_are_found(wanted: str, names: list[str], text: str) -> None:
    """Misspelled, in capitals, or only begun."""
    assert suggest(wanted, names) == text


def test_a_resize_needs_something_to_change(
    client: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """And numbers that the contract can carry."""
    assert app.main("resize", ["j"]) == 2
    assert app.main("resize", ["j", "2:1"]) == 2
    assert app.main("resize", ["j", "9" * 12]) == 2
    lines = capsys.readouterr().err.splitlines()

    assert lines[0] == "rallypoint resize: error: give N, MIN:MAX or --max-restarts N"
    assert lines[1].startswith("rallypoint resize: error: nodes: '2:1' does not satisfy")
    assert lines[2].startswith("rallypoint resize: error: nodes: ")
    client.update_job.assert_not_called()


def test_a_resize_stops_no_round_for_missing_nodes(
    client: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only --force does, and the refusal says so."""
    missing = refusal(Refused("job j has 2 of 5 nodes"), "NODES_MISSING")
    client.update_job.side_effect = missing
    assert app.main("resize", ["j", "5"]) == 1
    found = capsys.readouterr().err
    client.update_job.side_effect = None
    client.update_job.return_value = jobs_pb2.UpdateJobResponse(job=summary(min_nodes=5))
    assert app.main("resize", ["j", "5", "--force"]) == 0

    assert found == (
        "rallypoint resize: error: job j has 2 of 5 nodes; keep MIN to grow as nodes come: "
        "rallypoint resize j MIN:MAX; or --force\n"
    )
    required = [call.kwargs["require_nodes"] for call in client.update_job.call_args_list]
    assert required == [True, False]
