"""What an agent logs while no coordinator answers."""

from __future__ import annotations

import pytest
import structlog
from msgspec.structs import replace

from rallypoint.agent.core.leaving.away import Absence
from rallypoint.base.exit_codes import EXIT_UNREACHABLE
from rallypoint.base.file_thread import FileThread
from rallypoint.cli.report.reports import Reports

NEVER = Absence(
    why="cannot connect to head:7",
    left_ms=569_400,
    timeout_ms=600_000,
    has_begun=False,
    was_reached=False,
)


def logged(absence: Absence) -> dict[str, object]:
    """Return the line of the log."""
    reports = Reports(print, "rallypoint agent", "train.py", "head:7", "", FileThread("report"))
    with structlog.testing.capture_logs() as lines:
        reports.disconnected(absence)
    (line,) = lines
    return dict(line)


def test_first_line_says_what_to_start() -> None:
    """An agent that has never reached a coordinator says how to start one, and how long is left."""
    line = logged(NEVER)

    assert line["event"] == "coordinator_not_reached"
    assert line["hint"] == "start one there: rallypoint coordinator --port 7"
    assert line["then"] == "no workers run yet; retrying for 570 s (--coordinator-timeout)"


def test_coordinator_that_was_there_needs_no_such_hint() -> None:
    """It may be back soon, and must not get a second one beside it."""
    line = logged(replace(NEVER, was_reached=True))

    assert "hint" not in line


def test_coordinator_that_answers_needs_no_start(capsys: pytest.CaptureFixture[str]) -> None:
    """It says why it cannot serve the agent now, which the agent repeats when it gives up."""
    away = replace(NEVER, why="etcd cannot be reached", is_answered=True)
    reports = Reports(print, "rallypoint agent", "train.py", "head:7", "", FileThread("report"))
    with structlog.testing.capture_logs() as lines:
        reports.disconnected(away)
    assert ["etcd cannot be reached"] == [line["why"] for line in lines if "hint" not in line]
    reports.ended(EXIT_UNREACHABLE, "no coordinator answered for 600 s", always_print=False)
    shown = capsys.readouterr().out
    assert shown.endswith("(head:7); the last answer: etcd cannot be reached\n")

    reports.disconnected(NEVER)
    reports.ended(EXIT_UNREACHABLE, "no coordinator answered for 600 s", always_print=False)
    assert "start one there" in capsys.readouterr().out


def test_what_the_agent_does_depends_on_its_workers() -> None:
    """Workers keep running without a limit; after they have ended, the agent gives up."""
    begun = replace(NEVER, has_begun=True, was_reached=True)

    assert logged(replace(begun, left_ms=None))["then"] == (
        "workers keep running; an agent without workers gives up after 600 s "
        "(--coordinator-timeout)"
    )
    assert logged(begun)["then"] == "no workers run any more; retrying for 570 s"


def test_reason_of_the_end_is_one_printable_line() -> None:
    """The coordinator, or what poses as it, may have written it."""
    printed = list[str]()
    files = FileThread("report")
    reports = Reports(printed.append, "rallypoint agent", "train.py", "head:7", "", files)
    reports.ended(1, "released: \x1b[2J\x07no\nrallypoint agent: forged", always_print=False)

    assert printed == [
        "rallypoint agent: released: \N{REPLACEMENT CHARACTER}no rallypoint agent: forged"
    ]
