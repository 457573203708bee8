"""The root cause that an agent writes for its scheduler, in torch's form."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from structlog.testing import capture_logs

from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.agent.torchelastic.root_cause import (
    compose_root_cause,
    find_exit,
    report_exit,
    report_finished,
)
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, verdict_pb2

NOW_S = 1_763_730_200.9
STACK = "Traceback (most recent call last):\nValueError: bad"
RECORD = node_pb2.ErrorRecord(message="ValueError: bad", traceback=STACK)
PLACE = {"node": "b", "round": 5, "host": "host-b", "rank": 3, "local_rank": 1, "pid": 7}


def finished(exit: node_pb2.WorkerExit | None) -> agent_pb2.Finished:
    """Return the end of a run in which this worker failed, or no worker."""
    verdict = verdict_pb2.Verdict(round=5, node_name="b", text="the whole finding")
    if exit is not None:
        exit.failed_at.CopyFrom(Timestamp(seconds=1_763_730_154))
        verdict.culprit.CopyFrom(
            verdict_pb2.FailedWorker(
                node_name="b", host_name="host-b", rank=3, local_rank=1, pid=7, exit=exit
            )
        )
    return agent_pb2.Finished(outcome=job_pb2.OUTCOME_FAILED, verdict=verdict, round=5)


def message(text: str, stack: str, code: int, time_s: int = 1_763_730_154) -> dict[str, Any]:
    extra = {"py_callstack": stack, "timestamp": str(time_s)}
    return {"message": text, "extraInfo": extra, "errorCode": code}


@pytest.mark.parametrize(
    ("claim", "exit", "here", "expected"),
    [
        (
            "as the worker wrote it, with its code",
            node_pb2.WorkerExit(exit_code=9, error=RECORD),
            {
                "message": {
                    "message": "m",
                    "extraInfo": {"py_callstack": "s", "timestamp": "1763730154", "x": 1},
                    "errorCode": 0,
                },
                "errorTraits": 2,
            },
            {
                "message": {
                    "message": "m",
                    "extraInfo": {"py_callstack": "s", "timestamp": "1763730154", "x": 1},
                    "errorCode": 9,
                },
                "errorTraits": 2,
            },
        ),
        (
            "with what torch cannot do without",
            node_pb2.WorkerExit(exit_code=9, error=RECORD),
            {"message": {"message": "m", "extraInfo": {"timestamp": "soon"}}},
            {
                "message": {
                    "message": "m",
                    "extraInfo": {"py_callstack": STACK, "timestamp": "1763730154"},
                    "errorCode": 9,
                },
            },
        ),
        (
            "no extra information at all",
            node_pb2.WorkerExit(exit_code=9, error=RECORD),
            {"message": {"message": "m"}},
            {
                "message": {
                    "message": "m",
                    "extraInfo": {"py_callstack": STACK, "timestamp": "1763730154"},
                    "errorCode": 9,
                },
            },
        ),
        (
            "a plain message has no place for a code",
            node_pb2.WorkerExit(exit_code=9, error=RECORD),
            {"message": "m", "more": 4},
            {"message": "m", "more": 4, "timestamp": 1_763_730_154},
        ),
        (
            "a file of another form is not copied",
            node_pb2.WorkerExit(exit_code=9, error=RECORD),
            ["m"],
            {"message": message("ValueError: bad", STACK, 9)},
        ),
        (
            "on another node",
            node_pb2.WorkerExit(signal=11, error=RECORD),
            None,
            {"message": message("ValueError: bad", STACK, -11)},
        ),
        (
            "without a record",
            node_pb2.WorkerExit(exit_code=2, stderr_tail="last words"),
            None,
            {"message": message("the whole finding", "last words", 2)},
        ),
        (
            "without a word",
            node_pb2.WorkerExit(signal=9),
            None,
            {"message": message("the whole finding", "the whole finding", -9)},
        ),
        (
            "a worker that still runs",
            node_pb2.WorkerExit(),
            None,
            {"message": message("the whole finding", "the whole finding", 1)},
        ),
    ],
)
def test_forms(
    claim: str, exit: node_pb2.WorkerExit, here: object, expected: dict[str, object]
) -> None:
    """The root cause is the worker's error file if it is on this node, else made of the verdict."""
    found = compose_root_cause(finished(exit), here, NOW_S)

    assert found == {**expected, "rallypoint": PLACE}, claim


def test_cause_without_a_worker() -> None:
    """Without a failed worker, such as for a lost node, the error has the present time."""
    found = compose_root_cause(finished(None), None, NOW_S)

    assert found == {
        "message": message("the whole finding", "the whole finding", 1, 1_763_730_200),
        "rallypoint": {"node": "b", "round": 5},
    }


@pytest.mark.parametrize(
    ("claim", "last", "expected"),
    [
        ("the culprit's", ("b", 5, 1, 7), "/logs/error.json"),
        ("another node", ("a", 5, 1, 7), ""),
        ("another round", ("b", 4, 1, 7), ""),
        ("another worker", ("b", 5, 0, 7), ""),
        ("another process", ("b", 5, 1, 8), ""),
    ],
)
def test_whose_file_is_copied(claim: str, last: tuple[str, int, int, int], expected: str) -> None:
    """The error file is used only for the very worker that failed first."""
    node, round, local_rank, pid = last
    exit = node_pb2.WorkerExit(exit_code=1, error_file="/logs/error.json")
    failed = node_pb2.Worker(local_rank=local_rank, pid=pid, exit=exit)
    here = LastRound(node, "host", round, (failed,))

    assert find_exit(finished(exit), here).error_file == expected, claim


def test_file_is_written_anew(tmp_path: Path) -> None:
    """The file of an earlier launch is replaced; the worker's own file is copied whole."""
    mine, theirs = tmp_path / "mine.json", tmp_path / "theirs.json"
    mine.write_text("x" * 9_999)
    theirs.write_text(json.dumps({"message": {"message": "m"}, "more": "\ud800"}))
    exit = node_pb2.WorkerExit(exit_code=1, error_file=str(theirs))
    failed = node_pb2.Worker(local_rank=1, pid=7, exit=exit)
    report_finished(str(mine), finished(exit), LastRound("b", "host", 5, (failed,)), NOW_S)

    found = json.loads(mine.read_text())
    assert found["message"] == message("m", "the whole finding", 1)
    assert found["more"] == "\ud800"


def test_file_that_was_overwritten_is_not_copied(tmp_path: Path) -> None:
    """A clean-up failed too, and left its own error there: the first one is the root cause."""
    mine, theirs = tmp_path / "mine.json", tmp_path / "theirs.json"
    theirs.write_text(json.dumps({"message": {"message": "the clean-up failed"}}))
    error = node_pb2.ErrorRecord(message="out of memory", traceback="first stack")
    exit = node_pb2.WorkerExit(exit_code=1, error_file=str(theirs), error=error)
    failed = node_pb2.Worker(local_rank=1, pid=7, exit=exit)
    report_finished(str(mine), finished(exit), LastRound("b", "host", 5, (failed,)), NOW_S)

    found = json.loads(mine.read_text())["message"]
    assert found["message"] == "out of memory"
    assert found["extraInfo"]["py_callstack"] == "first stack"


def test_file_that_is_too_deep_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON that is too deep to write again is left out; the limit depends on the interpreter."""
    mine = tmp_path / "mine.json"
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    written = {"message": {"message": "m", "extraInfo": {"deep": deep}}}
    monkeypatch.setattr("rallypoint.agent.torchelastic.root_cause.read_json", lambda *_: written)
    exit = node_pb2.WorkerExit(exit_code=1, error_file="theirs")
    failed = node_pb2.Worker(local_rank=1, pid=7, exit=exit)
    report_finished(str(mine), finished(exit), LastRound("b", "host", 5, (failed,)), NOW_S)

    assert json.loads(mine.read_text())["message"] == message(
        "the whole finding", "the whole finding", 1
    )


def test_what_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    """A folder, a missing folder, a pipe without a reader and a full disk are logged, no more."""
    os.mkfifo(tmp_path / "pipe")

    paths = [tmp_path, tmp_path / "no" / "file", tmp_path / "pipe", Path("/dev/full")]
    with capture_logs() as lines:
        for path in paths:
            report_exit(str(path), "why", 75, NOW_S)

    assert [("error_file_not_written", str(path)) for path in paths] == [
        (line["event"], line["path"]) for line in lines
    ]
