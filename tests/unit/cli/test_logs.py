"""The log: aligned lines of text, colours on a terminal only, JSON on request."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from rallypoint.base import log
from rallypoint.base.log import format_value
from rallypoint.cli.logs import TextRenderer, configure_logs, wants_colours


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def render(has_colours: bool = False, **fields: object) -> str:
    known = {"timestamp": "2026-11-21 14:03:11", "level": "info", "event": "round_began"}
    return TextRenderer(has_colours=has_colours)(None, "info", {**known, **fields})


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
