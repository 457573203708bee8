"""The log: aligned lines of text, colours on a terminal only, JSON on request."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from rallypoint.base import log
from rallypoint.base.log import format_value
from rallypoint.cli.logs import TextRenderer, configure_logs
from rallypoint.cli.terminal import join_words, wants_colours


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def render(has_colours: bool = False, columns: int = 0, **fields: object) -> str:
    known = {"timestamp": "2026-11-21 14:03:11", "level": "info", "event": "round_began"}
    renderer = TextRenderer(has_colours=has_colours, find_columns=lambda: columns)
    return renderer(None, "info", {**known, **fields})


def test_line_is_aligned() -> None:
    """Time, level, event, then the fields in the order given."""
    assert render(round=1, ranks=[0, 1]) == (
        "2026-11-21 14:03:11 info    round_began              round=1 ranks=0,1"
    )
    assert render(level="warning", event="x" * 30, a=1) == (
        f"2026-11-21 14:03:11 warning {'x' * 30} a=1"
    )


def test_line_without_fields_ends_with_its_event() -> None:
    """No trailing spaces."""
    assert render() == "2026-11-21 14:03:11 info    round_began"


def test_traceback_follows_the_line() -> None:
    """An exception is readable, not one long field."""
    assert render(exception="Traceback\n  x", a=1).splitlines()[1:] == ["Traceback", "  x"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("word", "word"),
        ("a/b:c,d", "a/b:c,d"),
        ("two words", "'two words'"),
        ("it's", '"it\'s"'),
        ("a=b", "'a=b'"),
        ("a\nb", "'a\\nb'"),
        ("", "''"),
        (2.5, "2.5"),
        (None, "None"),
        ((1, 2), "1,2"),
        ({2, 1}, "1,2"),
    ],
)
def test_value_reads_as_one_word(value: object, expected: str) -> None:
    """Whatever would not is quoted, and no value breaks the line."""
    assert format_value(value) == expected


def test_colours_are_for_terminals_that_want_them() -> None:
    """Not for a file, not with NO_COLOR, not for a dumb terminal."""
    assert wants_colours(Screen(), {})
    assert wants_colours(Screen(), {"NO_COLOR": ""})
    assert not wants_colours(io.StringIO(), {})
    assert not wants_colours(Screen(), {"NO_COLOR": "1"})
    assert not wants_colours(Screen(), {"TERM": "dumb"})


def test_colours_change_no_text() -> None:
    """A coloured line without its escapes is the plain one."""
    coloured = render(has_colours=True, a=1)

    assert "\x1b[" in coloured
    assert render(a=1) == _without_escapes(coloured)


@pytest.mark.parametrize("has_colours", [False, True])
def test_long_line_is_wrapped_between_words(has_colours: bool) -> None:
    """All but its first line are below the event; a longer word is not broken."""
    why = f"rank 0 on node a failed first: {'x' * 70} is no such thing"
    line = render(has_colours, columns=80, round=1, why=why)

    assert _without_escapes(line).split("\n") == [
        "2026-11-21 14:03:11 info    round_began              round=1 why='rank 0 on node",
        f"{'':28}a failed first:",
        f"{'':28}{'x' * 70}",
        f"{'':28}is no such thing'",
    ]


def test_wrapped_line_has_the_words_of_the_whole_one() -> None:
    """In a narrow terminal, too, where the indent is small."""
    why = "it was not set, and several workers share this node"
    whole, narrow = render(a=1, why=why), render(columns=50, a=1, why=why)

    assert whole.split() == narrow.split()
    assert [line[:5] for line in narrow.split("\n")] == ["2026-", "    a", "    s"]
    assert max(map(len, narrow.split("\n")[1:])) <= 50


def test_words_without_a_limit_are_one_line() -> None:
    """As for a file."""
    words = [(word, len(word)) for word in ("one", "", "two" * 50)]

    assert join_words(words, 0, 4) == f"one  {'two' * 50}"


PROGRAM = """
import logging, os, sys, threading, warnings
from rallypoint.cli.logs import configure_logs, take_python_logs
configure_logs("info", sys.argv[1])
take_python_logs()
logging.getLogger("grpc._common").error("bad %s", "thing")
logging.getLogger("quiet").info("unseen")
warnings.warn("old", DeprecationWarning, stacklevel=1)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("it broke")
"""


def run_program(style: str) -> list[str]:
    argv = [sys.executable, "-W", "always", "-c", PROGRAM, style]
    done = subprocess.run(argv, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0
    return done.stderr.splitlines()


def test_libraries_log_json_too() -> None:
    """What they log by Python's logging, and warnings, are events; each line is JSON."""
    bad, old, broke = map(json.loads, run_program("json"))

    assert {event["event"] for event in (bad, old, broke)} == {"library_logged"}
    assert (bad["level"], bad["logger"], bad["message"]) == ("error", "grpc._common", "bad thing")
    assert (old["level"], old["logger"]) == ("warning", "py.warnings")
    assert "DeprecationWarning: old" in old["message"]
    assert broke["message"] == "it broke"
    assert broke["exception"].endswith("ZeroDivisionError: division by zero")


def test_libraries_log_aligned_lines_too() -> None:
    """A traceback follows its line."""
    lines = run_program("text")

    assert lines[0].endswith("logger=grpc._common message='bad thing'")
    assert " warning library_logged           logger=py.warnings message=" in lines[1]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def _without_escapes(text: str) -> str:
    import re

    return re.sub(r"\x1b\[\d*m", "", text)


def test_formats_and_levels() -> None:
    """Text by default; JSON has the same fields; what is below the level is left out."""
    text, lines = io.StringIO(), io.StringIO()
    configure_logs("info", "text", text)
    log.get_logger().debug("unseen")
    log.get_logger().info("seen", a="b c")
    configure_logs("warning", "json", lines)
    log.get_logger().info("unseen")
    log.get_logger().warning("seen", a="b c")

    assert text.getvalue().count("\n") == 1 and text.getvalue().endswith(" a='b c'\n")
    fields = json.loads(lines.getvalue())
    assert [*fields] == ["timestamp", "level", "event", "a"]
    assert [*fields.values()][1:] == ["warning", "seen", "b c"]


def test_first_event_imports_no_renderer_of_others() -> None:
    """structlog's own imports rich where that is installed: 27 ms before the first worker."""
    program = (
        "import sys\n"
        "from rallypoint.base.log import get_logger\n"
        "from rallypoint.cli.logs import configure_logs\n"
        "configure_logs('info', 'text')\n"
        "get_logger().info('seen')\n"
        "sys.exit('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)

    assert done.returncode == 0
    assert b" seen" in done.stderr
