"""The end of a job in the agent's output: lines for people, or events alone."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.base.exit_codes import EXIT_CANCELLED, EXIT_FAILED, EXIT_SIGNAL_BASE, EXIT_USAGE
from rallypoint.base.file_thread import FileThread
from rallypoint.cli.report.reports import Reports
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, verdict_pb2

CAUSE = "rank 3 on node b failed first: exit code 1: RuntimeError: loss is nan"
EXIT = node_pb2.WorkerExit(exit_code=1, stderr_file="/logs/1/stderr.log")
VERDICT = verdict_pb2.Verdict(
    cause=verdict_pb2.VERDICT_CAUSE_WORKER_FAILED,
    round=5,
    node_name="b",
    culprit=verdict_pb2.FailedWorker(node_name="b", rank=3, local_rank=1, pid=7, exit=EXIT),
    collateral_count=2,
    text=CAUSE,
    consequence_text="no restarts are left",
)
FAILED = agent_pb2.Finished(
    outcome=job_pb2.OUTCOME_FAILED, verdict=VERDICT, restart_count=2, round=5
)
CANCELLED = agent_pb2.Finished(
    outcome=job_pb2.OUTCOME_CANCELLED,
    verdict=verdict_pb2.Verdict(
        cause=verdict_pb2.VERDICT_CAUSE_CANCELLED, text="the job was cancelled: wrong data"
    ),
    round=5,
)
LOST = agent_pb2.Finished(
    outcome=job_pb2.OUTCOME_ABANDONED,
    verdict=verdict_pb2.Verdict(
        cause=verdict_pb2.VERDICT_CAUSE_TOO_FEW_NODES, text="1 of 2 nodes came\nmissing: b"
    ),
)


@dataclass
class Output:
    lines: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


def end(
    finished: agent_pb2.Finished | None, exit_code: int, text: str, *, is_json: bool = False
) -> Output:
    """Return what an agent writes at its end."""
    output = Output()
    reports = Reports(
        print_lines=output.lines.append,
        prog="rallypoint agent",
        script="train.py",
        coordinator="head:7",
        error_file="",
        files=FileThread("report"),
        is_json=is_json,
    )
    with structlog.testing.capture_logs() as events:
        if finished is not None:
            reports.finished(finished, LastRound("a", "host-a", 5, (), ()))
        reports.ended(exit_code, text, always_print=False)
    output.events = [dict(event) for event in events]
    return output


@pytest.mark.parametrize(
    ("finished", "code", "text", "last"),
    [
        (FAILED, EXIT_FAILED, "the job failed", f"the job failed: {CAUSE}"),
        (CANCELLED, EXIT_CANCELLED, "the job was cancelled", "the job was cancelled: wrong data"),
        (LOST, EXIT_FAILED, "the job was abandoned", "the job was abandoned: 1 of 2 nodes came"),
        (FAILED, EXIT_SIGNAL_BASE + 15, "received SIGTERM", "received SIGTERM"),
        (None, EXIT_USAGE, "node a is taken", "node a is taken"),
    ],
)
def test_last_line_has_the_cause(
    finished: agent_pb2.Finished | None, code: int, text: str, last: str
) -> None:
    """`tail -1` and mails of schedulers show nothing else."""
    (shown,) = end(finished, code, text).lines

    assert shown.splitlines()[-1] == f"rallypoint agent: {last}"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_root_cause_is_red_on_a_terminal(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    """In the report and in the last line, unless NO_COLOR is set; JSON has no colours."""
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    (shown,) = end(FAILED, EXIT_FAILED, "the job failed").lines
    events = end(FAILED, EXIT_FAILED, "the job failed", is_json=True).events

    red = [line for line in shown.splitlines() if line.startswith("\x1b[31m")]
    assert len(red) == (0 if no_color else 3)
    assert all(line.endswith("\x1b[0m") for line in red)
    assert "\x1b" not in repr(events) + repr(shown) * bool(no_color)


@pytest.mark.parametrize(
    ("finished", "event", "level"),
    [
        (FAILED, "job_failed", "error"),
        (CANCELLED, "job_cancelled", "warning"),
        (LOST, "job_abandoned", "error"),
    ],
)
@pytest.mark.parametrize("is_json", [False, True])
def test_end_is_an_event(
    finished: agent_pb2.Finished, event: str, level: str, *, is_json: bool
) -> None:
    """In both formats, with its reason: an alert can match it."""
    (first, *_) = end(finished, EXIT_FAILED, "the job ended", is_json=is_json).events

    assert (first["event"], first["log_level"]) == (event, level)
    assert first["why"] == finished.verdict.text


def test_json_has_nothing_but_events() -> None:
    """With the facts of the verdict, and with the report as one field."""
    output = end(FAILED, EXIT_FAILED, "the job failed", is_json=True)
    failed, ended = output.events

    assert output.lines == []
    assert "Root Cause" in failed.pop("report")
    assert failed == {
        "event": "job_failed",
        "log_level": "error",
        "round": 5,
        "restarts": 2,
        "cause": "worker_failed",
        "node": "b",
        "rank": 3,
        "local_rank": 1,
        "pid": 7,
        "exit_code": 1,
        "log": "/logs/1/stderr.log",
        "consequence": "no restarts are left",
        "collateral": 2,
        "why": CAUSE,
    }
    assert (ended["event"], ended["exit_code"]) == ("agent_ended", EXIT_FAILED)
    assert ended["why"] == f"the job failed: {CAUSE}"


def test_other_ends_are_events_too() -> None:
    """A signal, a refusal: no line is left."""
    output = end(None, EXIT_SIGNAL_BASE + 15, "received SIGTERM", is_json=True)
    (ended,) = output.events

    assert output.lines == []
    assert (ended["event"], ended["why"]) == ("agent_ended", "received SIGTERM")


@pytest.mark.parametrize(
    "argv",
    [
        ("agent", "--log-format", "json", "--no-such-flag", "train.py"),
        ("agent", "--log-format=json", "--nnodes=x", "train.py"),
        ("agent", "--nnodes=x", "--log_format", "json", "train.py"),
        ("agent", "--log-format=json", "no-such-script.py"),
        ("coordinator", "--log-format=json", "--port=99999"),
        ("coordinator", "--log-format=json", "--host=127.0.0.1", "--state=sqlite:/proc/x/y"),
    ],
)
def test_errors_of_the_command_line_are_json(argv: tuple[str, ...]) -> None:
    """Also while it is not known yet whether the flag itself is right."""
    program = "import sys; from rallypoint.cli.main import rallypoint; rallypoint()"
    done = subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=60
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]

    assert done.returncode != 0
    assert lines[-1]["event"] == "command_failed"
    assert lines[-1]["level"] == "error"
