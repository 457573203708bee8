"""What checks have found, and how it is shown: a line for each as soon as it is known, its advice
below it, and the sum.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct
from msgspec.structs import asdict

from rallypoint.cli.operator.output import Output, clean
from rallypoint.cli.operator.views.words import describe_count

LEVEL_WIDTH, CHECK_WIDTH = 7, 15
"""Columns of the longest level and check: lines are printed before the others are known."""
TEXT_COLUMNS_MIN = 30
"""In a narrower terminal lines are wrapped by it."""
_GAP = "  "
_INDENT = " " * (LEVEL_WIDTH + CHECK_WIDTH + 2 * len(_GAP))
_UNITS = (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0), ("second", 1.0))


class Level(Enum):
    """How serious a finding is."""

    OK = "ok"
    """Nothing to do."""
    WARNING = "warning"
    """It works now, and may not later or not for everyone."""
    PROBLEM = "problem"
    """It does not work."""


STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


class Finding(Struct, frozen=True):
    """The result of one check."""

    check: str
    """Name of the check, such as "connection"."""
    level: Level
    text: str
    """What is right or wrong, in one sentence without a full stop."""
    advice: str = ""
    """What to do. Empty only when it is right."""


def ok(check: str, text: str) -> Finding:
    """Return that something is right."""
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """Return that something may become wrong."""
    return Finding(check, Level.WARNING, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    """Return that something is wrong."""
    return Finding(check, Level.PROBLEM, text, advice)


def describe(seconds: float) -> str:
    """Return a duration in its largest unit, such as "3 days" or "1.2 seconds"; at least 1 ms."""
    for name, size in _UNITS:
        if seconds >= size:
            count = seconds / size
            shown = f"{count:.1f}" if count < 10 else f"{count:.0f}"
            shown = shown.removesuffix(".0")
            return f"1 {name}" if shown == "1" else f"{shown} {name}s"
    return f"{max(seconds * 1000, 1):.0f} ms"


class Report:
    """Prints findings about one thing after the other."""

    def __init__(self, output: Output) -> None:
        """Begin."""
        self._output = output
        self._found = list[tuple[str, Finding]]()

    def add(self, about: str, findings: Iterable[Finding], *, note: str = "") -> None:
        """Show findings as they come.

        Args:
            about: a coordinator or this host.
            findings: one for each check.
            note: why it is checked; empty: that is clear.
        """
        if not self._output.is_json:
            self._print_heading(about, note)
        for one in findings:
            self._found.append((about, one))
            if not self._output.is_json:
                self._print(one)

    def end(self) -> int:
        """Show the sum; return how many problems there are."""
        counts = Counter(one.level for _, one in self._found)
        if self._output.is_json:
            findings = [
                {"about": about, **asdict(one), "level": one.level.value}
                for about, one in self._found
            ]
            problems, warnings = counts[Level.PROBLEM], counts[Level.WARNING]
            sums = {"problems": problems, "warnings": warnings}
            self._output.print_json({"findings": findings, **sums})
        else:
            self._output.print()
            names = {Level.PROBLEM: "problem", Level.WARNING: "warning"}
            parts = [
                describe_count(counts[one], name) for one, name in names.items() if counts[one]
            ]
            self._output.print(", ".join(parts) or "everything is in order")
        return counts[Level.PROBLEM]

    def _print_heading(self, about: str, note: str) -> None:
        from rich.text import Text

        if self._found:
            self._output.print()
        heading = Text(about, style="bold")
        self._output.print(heading.append(f"  ({note})", style="not bold") if note else heading)

    def _print(self, one: Finding) -> None:
        from rich.text import Text

        first, *more = self._wrap(clean(one.text))
        level = (f"{one.level.value:{LEVEL_WIDTH}}", STYLES[one.level])
        self._output.print(Text.assemble(level, f"{_GAP}{one.check:{CHECK_WIDTH}}{_GAP}{first}"))
        for line in more:
            self._output.print(_INDENT + line)
        for line in self._wrap(f"→ {clean(one.advice)}") if one.advice else ():
            self._output.print(Text(_INDENT + line, style="bold"))

    def _wrap(self, text: str) -> list[str]:
        """Return the lines of a text; a word is never cut, so that commands can be copied."""
        width = max(self._output.console.width - len(_INDENT), TEXT_COLUMNS_MIN)
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
