"""The report at the end of a job: what a person needs to know, and nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console

from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.cli.operator.views.verdicts import render_verdict
from rallypoint.cli.report.render import FAILURES_MAX, render_finished
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, verdict_pb2


def group(
    error: str, *ranks: tuple[int, int], exit: str = "exit code 1", count: int = 0
) -> verdict_pb2.FailureGroup:
    return verdict_pb2.FailureGroup(
        ranks=[verdict_pb2.RankRange(first=first, last=last) for first, last in ranks],
        count=count or sum(last - first + 1 for first, last in ranks),
        exit_text=exit,
        error=error,
    )


def worker(
    rank: int, code: int = 1, said: str = "", *, signal: int = 0, signalled: bool = False
) -> node_pb2.Worker:
    """Return a worker of node a, whose first rank is 8."""
    exit = node_pb2.WorkerExit(
        exit_code=None if signal else code,
        signal=signal or None,
        agent_signalled_first=signalled,
        failed_at=Timestamp(seconds=1_763_730_154),
        error_file=f"/logs/{rank}/error.json" if said else "",
    )
    if said:
        exit.error.message = said
    return node_pb2.Worker(local_rank=rank - 8, rank=rank, pid=4_000 + rank, exit=exit)


def here(
    failed: Sequence[node_pb2.Worker] = (), stopped: Sequence[node_pb2.Worker] = (), number: int = 5
) -> LastRound:
    return LastRound("a", "host-a", number, tuple(failed), tuple(stopped))


def finished_with(
    exit: node_pb2.WorkerExit,
    *groups: verdict_pb2.FailureGroup,
    failed: int = 0,
    evidence: str = "",
) -> agent_pb2.Finished:
    """Return the end of a run in which rank 3 of node b was the culprit."""
    verdict = verdict_pb2.Verdict(
        cause=verdict_pb2.VERDICT_CAUSE_WORKER_FAILED,
        round=5,
        culprit=verdict_pb2.FailedWorker(
            node_name="b", host_name="host-b", rank=3, local_rank=1, pid=7, exit=exit
        ),
        collateral_count=failed,
        consequence_text="no restarts are left",
        groups=groups,
        evidence=evidence,
    )
    return agent_pb2.Finished(
        outcome=job_pb2.OUTCOME_FAILED, verdict=verdict, restart_count=2, round=5
    )


def render(
    *groups: verdict_pb2.FailureGroup,
    failed: int = 0,
    evidence: str = "",
    exit: node_pb2.WorkerExit | None = None,
    local: LastRound | None = None,
) -> list[str]:
    """Return the report of a run in which rank 3 was the culprit and `failed` others failed."""
    exit = exit or node_pb2.WorkerExit(
        signal=9, stderr_tail="last words\n", failed_at=Timestamp(seconds=1_763_730_154)
    )
    finished = finished_with(exit, *groups, failed=failed, evidence=evidence)
    return render_finished(finished, "train.py", local or here(), UTC).splitlines()


def test_report_names_the_culprit_and_the_others() -> None:
    """The first failure comes with all that torchrun says; the others in two lines a kind."""
    lines = render(
        group("", (3, 3), exit="signal 9 (SIGKILL)"),
        group("Traceback:\n  File x\nRuntimeError: Connection reset by *", (0, 2), (7, 7)),
        failed=5,
        evidence="rank 0 was reported first, but with a broken connection",
    )

    assert lines == [
        "=" * 60,
        "train.py FAILED",
        "-" * 60,
        "Failures (other workers on this node, a):",
        "  <NO_OTHER_FAILURES>",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2025-11-21_13:02:34",
        "  node      : b",
        "  host      : host-b",
        "  rank      : 3 (local_rank: 1)",
        "  exitcode  : -9 (pid: 7) (SIGKILL)",
        "  error_file: <N/A>",
        "  ran for   : 0.0 s",
        "  because   : rank 0 was reported first, but with a broken connection",
        "  traceback : Signal 9 (SIGKILL) received by PID 7",
        "  end of standard error:",
        "    last words",
        "  then      : no restarts are left",
        "  collateral: 5 more failed:",
        "    ranks 0-2,7: exit code 1",
        "      RuntimeError: Connection reset by *",
        "    and 1 more",
        "  restarts  : 2, round 5",
        "=" * 60,
    ]


def test_recorded_error_is_told_whole() -> None:
    """The traceback is the one that @record wrote, indented as torchrun does; else a hint."""
    error = node_pb2.ErrorRecord(
        message="ValueError: x", traceback="Traceback:\n  File x\nValueError: x"
    )
    lines = render(
        exit=node_pb2.WorkerExit(exit_code=1, error=error, error_file="/logs/error.json")
    )

    at = lines.index("  traceback : Traceback:")
    assert lines[at + 1 : at + 3] == ["    File x", "  ValueError: x"]
    assert "  error_file: /logs/error.json" in lines
    assert "  time      : <N/A>" in lines
    assert not [line for line in lines if line.startswith("  log ")]
    assert "  exitcode  : 1 (pid: 7)" in lines
    lines = render(exit=node_pb2.WorkerExit(error=error))
    assert "  exitcode  : <N/A> (pid: 7), it recorded its error and had not ended yet" in lines
    error.age_at_exit.seconds = 2
    slow = node_pb2.WorkerExit(signal=15, error=error, agent_signalled_first=True)
    slow.outlived_signal_for.seconds = 1
    assert "  exitcode  : 1 (pid: 7)" in render(exit=slow)
    lines = render(exit=node_pb2.WorkerExit(exit_code=1))
    (line,) = [line for line in lines if line.startswith("  traceback : <N/A>")]
    assert line.endswith("torch.distributed.elastic.multiprocessing.errors.record records it")
    assert len(line) <= 100
    lines = render(exit=node_pb2.WorkerExit(exit_code=1, stderr_tail="last words"))
    at = lines.index("  traceback : see the end of standard error below")
    assert lines[at + 1 : at + 3] == ["  end of standard error:", "    last words"]


STACK = "Traceback (most recent call last):\n  File x\n"


def told(stderr_tail: str) -> list[str]:
    """Return the report's lines from that of the traceback to that of the consequence."""
    lines = render(exit=node_pb2.WorkerExit(exit_code=1, stderr_tail=stderr_tail))
    at = next(n for n, line in enumerate(lines) if line.startswith("  traceback : "))
    return lines[at : lines.index("  then      : no restarts are left")]


def test_printed_traceback_is_that_of_the_report() -> None:
    """An uncaught error stands where torchrun has `<N/A>`, without torch's prefix on each line."""
    prefixed = f"[rank0]: {STACK}ValueError: x\n".replace("\n  ", "\n[rank0]:   ")

    for tail in (f"{STACK}ValueError: x\n", prefixed):
        assert told(tail) == [
            "  traceback : Traceback (most recent call last):",
            "    File x",
            "  ValueError: x",
        ]


def test_file_of_standard_error_is_named() -> None:
    """The rest of the output is in that file, on the node that is named."""
    lines = render(exit=node_pb2.WorkerExit(exit_code=1, stderr_file="/logs/1/stderr.log"))

    assert lines[lines.index("  error_file: <N/A>") + 1] == "  log       : /logs/1/stderr.log"


def test_lines_above_a_printed_traceback_are_kept() -> None:
    """A chain of errors begins with its first; CUDA's own lines stand above it."""
    chain = f"{STACK}KeyError: 1\n\nDuring handling of the above exception, another\n\n"
    lines = told(f"step 1\nCUDA assert\n{chain}{STACK}ValueError: x\n")

    assert lines[0] == "  traceback : Traceback (most recent call last):"
    assert (lines[2], lines[-4]) == ("  KeyError: 1", "  ValueError: x")
    assert lines[-3:] == ["  standard error above it:", "    step 1", "    CUDA assert"]


@pytest.mark.parametrize(
    "tail",
    [
        "last words\n",
        "  File cut off\nValueError: x\n",
        f"Exception in thread T:\n{STACK}ValueError: x\n",
        f"{STACK}ValueError: caught\n" + "a line after it\n" * 20,
    ],
)
def test_other_output_is_no_traceback(tail: str) -> None:
    """Without an uncaught error at its end, standard error stays what it is."""
    assert told(tail)[:2] == [
        "  traceback : see the end of standard error below",
        "  end of standard error:",
    ]


def test_other_failures_of_the_node_are_listed() -> None:
    """Each has its location and its last line; a worker that the agent stopped is not a failure."""
    said = "ValueError: another one"
    failed = [worker(8, 7, said), worker(9, signal=11), worker(10, 1, said, signalled=True)]
    failed[1].exit.stderr_tail = "Loading weights: 100%\n"
    lines = render(local=here(failed, [worker(rank, signal=15) for rank in (11, 12, 15)]))

    first, last = lines.index("Failures (other workers on this node, a):"), lines.index("-" * 60, 3)
    assert lines[first + 1 : last] == [
        "[0]:",
        "  time      : 2025-11-21_13:02:34",
        "  host      : host-a",
        "  rank      : 8 (local_rank: 0)",
        "  exitcode  : 7 (pid: 4008)",
        "  error_file: /logs/8/error.json",
        "  traceback : ValueError: another one",
        "[1]:",
        "  time      : 2025-11-21_13:02:34",
        "  host      : host-a",
        "  rank      : 9 (local_rank: 1)",
        "  exitcode  : -11 (pid: 4009) (SIGSEGV)",
        "  error_file: <N/A>",
        "  traceback : Signal 11 (SIGSEGV) received by PID 4009; with PYTHONFAULTHANDLER=1 it "
        "prints a traceback",
        "[2]:",
        "  time      : 2025-11-21_13:02:34",
        "  host      : host-a",
        "  rank      : 10 (local_rank: 2)",
        "  exitcode  : 1 (pid: 4010)",
        "  error_file: /logs/10/error.json",
        "  signalled : by the agent, after the worker had recorded its error",
        "  traceback : ValueError: another one",
        "  stopped by the agent, not failed: ranks 11-12,15",
    ]


def test_root_cause_is_not_told_twice() -> None:
    """On its own node the culprit is no other failure, and an equal error is only referred to."""
    exit = node_pb2.WorkerExit(exit_code=1, stderr_tail="ImportError: nothing\n")
    finished = finished_with(exit)
    finished.verdict.culprit.node_name = "a"
    failed = [worker(9), worker(10), worker(11)]
    failed[0].pid = 7
    for one in failed:
        one.exit.stderr_tail = "  File x\nImportError: nothing\n"
    text = render_finished(finished, "train.py", here(failed), UTC)

    assert text.count("ImportError: nothing") == 1
    assert text.count("[0]:") == 1
    lines = text.splitlines()
    root = lines.index("Root Cause (first observed failure):")
    assert lines[root + 1] == "[0]:"
    assert lines[3:root] == [
        "Failures (other workers on this node, a):",
        "  ranks 10-11: the same error as the root cause",
        "-" * 60,
    ]


def test_equal_errors_of_other_workers_are_told_once() -> None:
    """With the ranks of all of them; one that ended in another way has its own entry."""
    failed = [worker(rank, 1, "ValueError: x") for rank in range(8, 12)]
    failed.append(worker(12, 3, "ValueError: x"))
    lines = render(local=here(failed))

    assert [line for line in lines if line.startswith("[")] == ["[0]:", "[4]:", "[5]:"]
    at = lines.index("  traceback : ValueError: x")
    assert lines[at + 1 : at + 3] == ["  the same  : ranks 9-11", "[4]:"]


MISSING = "  File x\nModuleNotFoundError: No module named 'torch'\n"


@pytest.mark.parametrize(
    ("command", "said", "advice"),
    [
        ("/a/python -u train.py", MISSING, "this ran under /a/python; PYTHON_EXEC chooses another"),
        ("/a/python -u train.py", "SyntaxError: invalid syntax\n", ""),
        ("./train", MISSING, ""),
        ("", MISSING, ""),
    ],
)
def test_interpreter_is_named(command: str, said: str, advice: str) -> None:
    """The report and an operator's verdict say what ran, and of a missing module what to do."""
    exit = node_pb2.WorkerExit(exit_code=1, stderr_tail=said)
    finished = finished_with(exit)
    finished.verdict.culprit.command = command
    lines = render_finished(finished, "train.py", here(), UTC).splitlines()
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render_verdict(finished.verdict, "train run 1", UTC))
    shown = captured.get().splitlines()

    assert [line for line in lines if "  command" in line] == (
        [f"  command   : {command}"] if command else []
    )
    assert [line for line in lines if "  python" in line] == (
        [f"  python    : {advice}"] if advice else []
    )
    assert any(line.split() == ["command", *command.split()] for line in shown) == bool(command)
    assert any(advice in line for line in shown)


@pytest.mark.parametrize(
    ("exit", "painted"),
    [
        (
            node_pb2.WorkerExit(exit_code=1, stderr_tail=f"{STACK}ValueError: x\n"),
            "  ValueError: x",
        ),
        (node_pb2.WorkerExit(signal=9), "  exitcode  : -9 (pid: 7) (SIGKILL)"),
    ],
)
def test_root_cause_stands_out(exit: node_pb2.WorkerExit, painted: str) -> None:
    """Its heading, and its error or how the worker ended."""
    report = render_finished(
        finished_with(exit), "train.py", here(), UTC, paint=lambda text: f"<{text}>"
    )

    assert [line[1:-1] for line in report.splitlines() if line.startswith("<")] == [
        "Root Cause (first observed failure):",
        painted,
    ]


def test_many_failures_of_a_node_are_counted() -> None:
    """A node of many workers fills no screen."""
    failed = [worker(8 + n) for n in range(FAILURES_MAX + 3)]
    lines = render(local=here(failed))

    assert f"[{FAILURES_MAX - 1}]:" in lines
    assert f"[{FAILURES_MAX}]:" not in lines
    assert "  and 3 more: ranks 16-18" in lines


@pytest.mark.parametrize("number", [0, 4])
def test_another_round_is_not_told(number: int) -> None:
    """What became of workers in a round before the last one explains nothing."""
    lines = render(local=here([worker(8)], [worker(9)], number))

    assert "  <NO_OTHER_FAILURES>" in lines
    assert not [line for line in lines if "stopped" in line]


def test_end_without_a_worker_has_its_cause() -> None:
    """A job that never began says what it lacked."""
    verdict = verdict_pb2.Verdict(text="only 1 of 2 nodes came")
    finished = agent_pb2.Finished(outcome=job_pb2.OUTCOME_FAILED, verdict=verdict)
    lines = render_finished(finished, "train.py", here(number=0), UTC).splitlines()

    assert "  cause     : only 1 of 2 nodes came" in lines
    assert "  restarts  : 0, no round was formed" in lines


def test_failures_like_the_first_are_not_told_again() -> None:
    """Workers that failed as the culprit did are a line; the culprit alone is none."""
    lines = render(group("ValueError: x", (0, 511), exit="signal 9 (SIGKILL)"), failed=511)

    others = "ranks 0-2,4-511: signal 9 (SIGKILL), the same as the root cause"
    at = lines.index(f"  collateral: 511 more failed: {others}")
    assert lines[at + 1].startswith("  restarts")


def test_error_of_the_first_is_not_told_again() -> None:
    """A worker that was signalled while it ended of the same error is a line as well."""
    exit = node_pb2.WorkerExit(exit_code=1, stderr_tail="  File x\nImportError: nothing\n")
    also = group("Traceback:\n  File x\nImportError: nothing", (7, 7), exit="signal 15 (SIGTERM)")
    lines = render(also, failed=1, exit=exit)

    others = "rank 7: signal 15 (SIGTERM), with the same error"
    at = lines.index(f"  collateral: 1 more failed: {others}")
    assert lines[at + 1].startswith("  restarts")


def test_many_ranges_and_long_lines_are_cut() -> None:
    """A report has a line's length, however scattered the ranks and however long the error."""
    scattered = [(2 * n, 2 * n) for n in range(40)]
    lines = render(group("x" * 999, *scattered, count=100), failed=100)

    at = lines.index("  collateral: 100 more failed:")
    assert lines[at + 1] == ("    ranks 0,2,4,6,8,10,12,14,16,18,20,22 and 88 more: exit code 1")
    assert lines[at + 2] == "      " + "x" * 99 + "…"


def test_success_needs_no_report() -> None:
    """A job that succeeded says nothing."""
    finished = agent_pb2.Finished(outcome=job_pb2.OUTCOME_SUCCEEDED)

    assert render_finished(finished, "train.py", here()) == ""


HOSTILE = "\x1b[2J\x07gone\x00\N{RIGHT-TO-LEFT OVERRIDE}\r\nforged: all is well"


def test_texts_of_a_coordinator_cannot_change_the_terminal() -> None:
    """A false coordinator adds no line and no control character to the report."""
    exit = node_pb2.WorkerExit(exit_code=1, error_file=HOSTILE, stderr_file=HOSTILE)
    exit.error.traceback = f"Traceback{HOSTILE}"
    finished = finished_with(exit, group(HOSTILE, (0, 1), exit=HOSTILE), failed=2, evidence=HOSTILE)
    finished.verdict.consequence_text = HOSTILE
    finished.verdict.culprit.node_name = finished.verdict.culprit.host_name = HOSTILE
    uncaused = agent_pb2.Finished(outcome=job_pb2.OUTCOME_FAILED)
    uncaused.verdict.text = HOSTILE
    for message in (finished, uncaused):
        text = render_finished(message, "train.py", here(), UTC)

        assert [char for char in text if not char.isprintable() and char != "\n"] == []
        assert [line for line in text.split("\n") if line.startswith("forged")] == []


@pytest.mark.parametrize(
    ("code", "means"),
    [
        (137, ", as of a program that SIGKILL ended, often for lack of memory"),
        (139, ", as of a program that SIGSEGV ended"),
        (128, ""),
        (255, ""),
    ],
)
def test_codes_of_shells_are_explained(code: int, means: str) -> None:
    """A worker may be a shell, or a launcher, whose program was killed."""
    assert f"  exitcode  : {code} (pid: 7){means}" in render(
        exit=node_pb2.WorkerExit(exit_code=code)
    )


def test_traceback_of_a_fault_is_not_promised_twice() -> None:
    """A worker with a fault handler has printed its traceback."""
    fault = node_pb2.WorkerExit(signal=11, stderr_tail="Fatal Python error: Segmentation fault\n")
    assert not any("PYTHONFAULTHANDLER" in line for line in render(exit=fault))
