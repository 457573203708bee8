"""What an agent reports of a worker's exit: which came first, the exit or our signal."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.held_round import ErrorRecord, LocalExit
from rallypoint.agent.core.reports import ExitedReport
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import step
from rallypoint.agent.session.translate import fill_snapshot, report_message
from rallypoint.agent.torchelastic.error_files import find_uncaught, read_error_file
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import node_pb2
from support.core.orders import run_order

ORDER = run_order()
STOP_MS = 2_000


def running(drain_ms: int = 0) -> AgentState:
    """Return an agent whose two workers started at 1 s."""
    state = AgentState(
        2,
        shutdown_timeout_ms=30_000,
        coordinator_timeout_ms=60_000,
        away_since_ms=None,
        drain_ms=drain_ms,
    )
    happened: list[tuple[inputs.Input, int]] = [
        (inputs.PortReserved(30_000), 0),
        (inputs.DesiredReceived(1, 1, ORDER), 1_000),
        (inputs.WorkerStarted(1, 0, 4_000), 1_000),
        (inputs.WorkerStarted(1, 1, 4_001), 1_000),
    ]
    for one, at_ms in happened:
        state, _ = step(state, one, at_ms)
    return state


def stopped() -> AgentState:
    """Return the same agent after a stop at 2 s."""
    stop = inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "why"))
    state, _ = step(running(), stop, STOP_MS)
    return state


def end(state: AgentState, ended_ms: int, signalled_ms: int | None, seen_ms: int) -> LocalExit:
    """Return the exit that the agent records of one, when it learns of it at `seen_ms`."""
    ended = inputs.WorkerEnded(1, 0, None, 11, None, "", ended_ms, signalled_ms=signalled_ms)
    state, _ = step(state, ended, seen_ms)
    (report,) = [report for report in state.reports if isinstance(report, ExitedReport)]
    assert report.worker.exit is not None
    return report.worker.exit


@pytest.mark.parametrize(
    ("claim", "ended_ms", "signalled_ms", "signalled_first", "signalled_before_ms"),
    [
        ("after the signal", STOP_MS + 30, STOP_MS, True, 30),
        ("at the time of the signal", STOP_MS + 1, STOP_MS + 1, True, 0),
        ("after the stop, before its signal", STOP_MS + 40, None, False, None),
        ("before the stop, seen after it", STOP_MS - 10, None, False, None),
    ],
)
@pytest.mark.parametrize("late_ms", [0, 1_000])
def test_which_came_first(
    claim: str,
    ended_ms: int,
    signalled_ms: int | None,
    signalled_first: bool,
    signalled_before_ms: int | None,
    late_ms: int,
) -> None:
    """The times of the helper count, not when the agent decides to stop or learns of the exit."""
    exit = end(stopped(), ended_ms, signalled_ms, STOP_MS + 40 + late_ms)

    assert (ended_ms, signalled_first, signalled_before_ms) == (
        exit.at_ms,
        exit.signalled_first,
        exit.signalled_before_ms,
    ), claim


@pytest.mark.parametrize(("ended_ms", "signalled_first"), [(2_999, False), (3_000, True)])
def test_drain_counts_as_a_signal(ended_ms: int, signalled_first: bool) -> None:
    """An end after the drain has begun is an effect of it, although no signal was sent."""
    state, _ = step(running(drain_ms=20_000), inputs.SignalReceived(15), 3_000)

    assert signalled_first == end(state, ended_ms, None, 3_500).signalled_first


def test_kill_by_the_helper_alone_is_a_failure() -> None:
    """A fence that the agent has moved too late for its helper must not hide a dead worker."""
    assert not end(running(), 3_000, 2_990, 3_000).signalled_first


@pytest.mark.parametrize("number", [1, 2])
def test_nothing_is_dropped_in_silence(number: int) -> None:
    """Word of a worker whose round the node does not hold is logged."""
    state, _ = step(stopped(), inputs.WorkerEnded(1, 0, 0, None, None, "", STOP_MS), STOP_MS)
    state, todo = step(state, inputs.WorkerEnded(number, 1, 3, None, None, "", STOP_MS), STOP_MS)

    dropped = [one for one in todo if isinstance(one, effects.LogDropped)]
    assert ([] if number == 1 else [effects.LogDropped(2, 1, "exit code 3")]) == dropped


def test_report_carries_what_the_verdict_needs() -> None:
    """It has the times of the signal and of the recorded error, and the OOM kill."""
    record = ErrorRecord("ValueError: loss is nan", "", 480)
    ended = inputs.WorkerEnded(
        *(1, 0, None, 9, record, "", STOP_MS + 30), oom_killed=True, signalled_ms=STOP_MS
    )
    state, _ = step(stopped(), ended, STOP_MS + 30)

    exit = report_message(state.reports[-1], STOP_MS + 30).exited.workers[0].exit

    assert exit.agent_signalled_first
    assert exit.oom_killed
    assert exit.outlived_signal_for.ToMilliseconds() == 30
    assert exit.error.age_at_exit.ToMilliseconds() == 480


def test_unsignalled_end_has_no_time_of_a_signal() -> None:
    """A signal that was not sent is absent from the message."""
    state, _ = step(
        stopped(), inputs.WorkerEnded(1, 0, 1, None, None, "", STOP_MS - 40), STOP_MS + 10
    )

    exit = report_message(state.reports[-1], STOP_MS + 10).exited.workers[0].exit

    assert not exit.agent_signalled_first
    assert not exit.HasField("outlived_signal_for")


def test_age_of_a_record_is_exact(tmp_path: Path) -> None:
    """The record's own time stamp has whole seconds, so the file's time is used."""
    path = tmp_path / "error.json"
    fields = {"message": "ValueError: x", "extraInfo": {"timestamp": "1000", "py_callstack": "at"}}
    path.write_text(json.dumps({"message": fields}))
    os.utime(path, (1_000.75, 1_000.75))

    assert read_error_file(path, 1_001.0) == ErrorRecord("ValueError: x", "at", 250, 1_000)
    path.write_text(json.dumps({"message": "plain"}))
    os.utime(path, (1_002.0, 1_002.0))
    assert read_error_file(path, 1_001.0) == ErrorRecord("plain", "", 0)


STACK = """\
Traceback (most recent call last):
  File "/src/train.py", line 3, in <module>
    raise ValueError("loss is nan")
ValueError: loss is nan"""
NOISE = "step 3\n"
DURING = "During handling of the above exception, another exception occurred:"


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_uncaught_error_is_the_last_in_the_output(prefix: str) -> None:
    """A traceback at the end of standard error is the worker's uncaught error."""
    printed = "".join(f"{prefix}{line}\n" for line in STACK.splitlines())

    assert find_uncaught(NOISE + printed) == ErrorRecord("ValueError: loss is nan", STACK, None)
    assert find_uncaught(f"{STACK}\n{NOISE}{printed}") == ErrorRecord(
        "ValueError: loss is nan", STACK, None
    )


CHILD = f"RuntimeError: Caught an error in a loader.\nOriginal {STACK}"


@pytest.mark.parametrize(
    ("claim", "headline", "expected"),
    [
        ("several lines", "ValueError: bad\nvalue", "ValueError: bad\nvalue"),
        ("an empty line", "ValueError: bad\n\nvalue", "ValueError: bad\n\nvalue"),
        ("the stack of a child", CHILD, CHILD),
    ],
)
def test_message_of_an_uncaught_error(claim: str, headline: str, expected: str) -> None:
    """All lines of the message count, without the rank that torch writes before each."""
    plain = STACK.rpartition("\n")[0] + f"\n{headline}\n"
    ranked = "".join(f"[rank3]: {line}".rstrip() + "\n" for line in plain.splitlines())

    for said in (plain, ranked):
        error = find_uncaught(NOISE + said)
        assert error is not None, claim
        assert expected == error.message, claim


@pytest.mark.parametrize(
    ("claim", "tail"),
    [
        ("nothing", ""),
        ("no error", NOISE),
        ("a caught error", f"{STACK}\n{NOISE * 9}"),
        ("of a thread", f"Exception in thread Thread-1 (f):\n{STACK}\n"),
        ("of a child", f"Process SpawnProcess-1:\n{STACK}\n"),
        ("after one of a thread", f"Exception in thread T:\n{STACK}\n\n{DURING}\n\n{STACK}\n"),
        ("of a destructor", f"Exception ignored in: <function f>\n{STACK}\n"),
        ("half of one", STACK.rpartition("\n")[0]),
        ("half of a second one", f"{STACK}\n{STACK.rpartition(chr(10))[0]}"),
        ("one without its head", STACK.partition("\n")[2]),
    ],
)
def test_no_uncaught_error(claim: str, tail: str) -> None:
    """A traceback that did not end the main thread is ignored."""
    assert find_uncaught(tail) is None, claim


def test_hello_holds_a_round_until_its_exits_are_heard() -> None:
    """Else a coordinator would settle the round before the exits that are sent after the Hello."""
    state = stopped()
    happened: list[inputs.Input] = [
        *(inputs.WorkerEnded(1, rank, 3, None, None, "", STOP_MS) for rank in (0, 1)),
        inputs.Swept(1),
        inputs.PortReserved(30_001),
    ]
    for one in happened:
        state, _ = step(state, one, STOP_MS + 10)
    assert state.held is None
    unheard, heard = agent_pb2.Hello(), agent_pb2.Hello()
    fill_snapshot(unheard, state, STOP_MS + 20)
    state, _ = step(state, inputs.Acknowledged(len(state.reports)), STOP_MS + 20)
    fill_snapshot(heard, state, STOP_MS + 20)

    assert [3, 3] == [worker.exit.exit_code for worker in unheard.held.workers]
    assert node_pb2.NODE_STATE_STOPPING == unheard.held.state
    assert (False, 30_001) == (heard.HasField("held"), heard.ready.master_port)
