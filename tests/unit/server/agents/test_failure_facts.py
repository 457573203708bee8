"""When and on which host a worker failed, and its error file: from the agent to the verdict."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec.structs import replace

from rallypoint.agent.core.held_round import ErrorRecord, LocalExit, LocalWorker
from rallypoint.agent.core.reports import ExitedReport, RecordedReport
from rallypoint.agent.session.translate import report_message
from rallypoint.server.agents.exits import WORDS_MAX
from rallypoint.server.agents.reports import to_report
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.contract.node import exit_message
from rallypoint.server.contract.verdict import verdict_message
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause
from rallypoint.server.core.model.worker import FailedWorker, Symptom, WorkerExit
from rallypoint.server.core.verdicts.symptoms import classify, find_error
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import node_pb2

FAILED_MS = 1_763_730_154_250
EXIT = LocalExit(
    1,
    None,
    5_000,
    False,
    ErrorRecord("m", "t", 250, 1_763_730_154),
    "",
    failed_ms=FAILED_MS,
    error_file="/logs/error.json",
    stderr_file="/logs/stderr.log",
)


def sent(exit: LocalExit) -> agent_pb2.SessionRequest:
    """Return the report of a worker that ended so, in its envelope."""
    worker = LocalWorker(0, 4_000, 1_000, exit)
    message = report_message(ExitedReport(1, worker), 6_000)
    message.session_id, message.connection, message.sequence = "a" * 32, 1, 1
    return message


def taken(message: agent_pb2.SessionRequest) -> WorkerExit:
    report = to_report(message, 1, clock_ms=0)
    assert isinstance(report, inputs.Exited)
    return report.exits[0]


def test_facts_arrive() -> None:
    """What the agent says is what the verdict tells; other failures come without paths."""
    exit = taken(sent(EXIT))
    culprit = FailedWorker(NodeName("a"), 0, exit, host="host-a", command="python -u train.py")
    verdict = Verdict(
        VerdictCause.WORKER_FAILED,
        1,
        NodeName("a"),
        "text",
        culprit,
        (replace(culprit, rank=1),),
        consequence=Consequence.BUDGET_SPENT,
    )
    message = verdict_message(verdict, None)

    assert (exit.failed_ms, exit.error_file) == (FAILED_MS, "/logs/error.json")
    assert message.culprit.host_name == message.collateral[0].host_name == "host-a"
    assert message.culprit.command == "python -u train.py"
    assert message.collateral[0].command == ""
    for failed in (message.culprit, message.collateral[0]):
        assert failed.exit.failed_at.ToMilliseconds() == FAILED_MS
    first, other = message.culprit.exit, message.collateral[0].exit
    assert (first.error_file, first.stderr_file) == ("/logs/error.json", "/logs/stderr.log")
    assert (other.error_file, other.stderr_file) == ("", "")


@pytest.mark.parametrize(
    ("claim", "time", "expected"),
    [
        ("none", None, None),
        ("the year 3000", Timestamp(seconds=32_503_680_000), 32_503_680_000_000),
        ("after it", Timestamp(seconds=32_503_680_001), None),
        ("before 1970", Timestamp(seconds=-1), None),
    ],
)
def test_clock_that_is_wrong_spoils_no_report(
    claim: str, time: Timestamp | None, expected: int | None
) -> None:
    """A time that cannot be is as good as none; the exit counts all the same."""
    message = sent(EXIT)
    message.exited.workers[0].exit.ClearField("failed_at")
    if time is not None:
        message.exited.workers[0].exit.failed_at.CopyFrom(time)

    assert taken(message).failed_ms == expected, claim
    assert taken(message).exit_code == 1


def test_long_path_is_cut_on_both_sides() -> None:
    """A path has at most 1,024 characters, from any agent."""
    path = "/" + "x" * 5_000
    message = sent(replace(EXIT, error_file=path, stderr_file=path))
    exit = message.exited.workers[0].exit

    assert exit.error_file == exit.stderr_file == path[:1_024]
    exit.error_file = exit.stderr_file = path
    assert taken(message).error_file == taken(message).stderr_file == path[:1_024]


def test_worker_of_31_days_can_be_reported() -> None:
    """A job that ran for longer than any time-out may last can still fail, and succeed."""
    days_ms = 31 * 86_400_000
    worker = LocalWorker(0, 4_000, 1_000, replace(EXIT, at_ms=1_000 + days_ms))
    message = report_message(ExitedReport(1, worker), 1_000 + 2 * days_ms)
    message.session_id, message.connection, message.sequence = "a" * 32, 1, 1

    assert (days_ms, days_ms) == (taken(message).ran_ms, taken(message).ago_ms)


def test_error_in_colours_is_read_in_plain_text() -> None:
    """Its own console shows the colours; a verdict reaches the consoles of others."""
    coloured = "\x1b[1;31mRuntimeError\x1b[0m: \x1b]0;title\x07boom\r\n\a"
    error = ErrorRecord(coloured, coloured, 250, 1_763_730_154)
    exit = taken(sent(replace(EXIT, error=error, stderr_tail=coloured)))

    assert exit.error is not None
    plain = "RuntimeError: boom\n\N{REPLACEMENT CHARACTER}"
    assert (plain, plain, plain) == (exit.error.message, exit.error.traceback, exit.stderr_tail)


FOUND = replace(EXIT, exit_code=None, signal=None)


def test_error_of_a_running_worker_arrives() -> None:
    """It has neither an exit code nor a signal; readers see a worker that runs and has failed."""
    worker = LocalWorker(0, 4_000, 1_000).failed(replace(FOUND, at_ms=5_000))
    message = report_message(RecordedReport(1, worker), 6_000)
    message.session_id, message.connection, message.sequence = "a" * 32, 1, 1
    report = to_report(message, 1, clock_ms=0)

    assert isinstance(report, inputs.Recorded)
    (exit,) = report.exits
    assert (exit.has_ended, exit.is_failure) == (False, True)
    assert (exit.ago_ms, exit.ran_ms) == (1_000, 4_000)
    shown = exit_message(exit, None, whole=True)
    assert not shown.HasField("exit_code") and not shown.HasField("signal")
    assert shown.error.message == "m"


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("recorded", node_pb2.WorkerExit(exit_code=1, error=node_pb2.ErrorRecord(message="m"))),
        ("recorded", node_pb2.WorkerExit(signal=9, error=node_pb2.ErrorRecord(message="m"))),
        ("recorded", node_pb2.WorkerExit()),
        ("exited", node_pb2.WorkerExit(error=node_pb2.ErrorRecord(message="m"))),
        ("exited", node_pb2.WorkerExit(exit_code=1, signal=9)),
    ],
)
def test_end_has_to_fit_the_report(kind: str, end: node_pb2.WorkerExit) -> None:
    """A worker that has ended has a code or a signal; one that runs has neither, but an error."""
    envelope = agent_pb2.SessionRequest(session_id="a" * 32, connection=1, sequence=1)
    report = getattr(envelope, kind)
    report.round = 1
    report.workers.append(node_pb2.Worker(local_rank=0, pid=4_000, exit=end))

    with pytest.raises(InvalidMessage) as refused:
        to_report(envelope, 1, clock_ms=0)
    assert refused.value.path == f"{kind}.workers[0].exit"


def test_first_failures_of_a_message_keep_their_words() -> None:
    """Of 4,096, the few that failed first; all others count without their words."""
    message = sent(EXIT)
    del message.exited.workers[:]
    for rank in range(4_096):
        error = node_pb2.ErrorRecord(message="m" * 300, traceback="t" * 400)
        exit = node_pb2.WorkerExit(exit_code=1, error=error, stderr_tail="s" * 100)
        exit.age.seconds = rank  # the last rank failed first
        message.exited.workers.add(local_rank=rank, exit=exit)
    report = to_report(message, 4_096, clock_ms=0)
    assert isinstance(report, inputs.Exited)
    read = [exit.local_rank for exit in report.exits if exit.error is not None and find_error(exit)]

    assert list(range(4_096 - WORDS_MAX, 4_096)) == read
    assert all(exit.is_failure for exit in report.exits)
    assert {Symptom.UNKNOWN} == {classify(exit) for exit in report.exits[:-WORDS_MAX]}


def test_ends_without_failure_keep_no_words_of_failures_away() -> None:
    """Workers that ended with 0 do not count."""
    message = sent(EXIT)
    del message.exited.workers[:]
    for rank in range(WORDS_MAX + 1):
        exit = node_pb2.WorkerExit(exit_code=0 if rank else 1, stderr_tail="s")
        exit.age.seconds = rank
        message.exited.workers.add(local_rank=rank, exit=exit)
    report = to_report(message, WORDS_MAX + 1, clock_ms=0)
    assert isinstance(report, inputs.Exited)

    assert report.exits[0].stderr_tail == "s"
