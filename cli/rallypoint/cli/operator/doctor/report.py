"""Shows findings: a line for each as soon as it is known, its advice below it, and the sum."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rallypoint.cli.operator.doctor.findings import Finding, Level
from rallypoint.cli.operator.output import Output, clean

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}
LEVEL_WIDTH, CHECK_WIDTH = 7, 15
"""Columns of the longest level and check: lines are printed before the others are known."""
TEXT_COLUMNS_MIN = 30
"""In a narrower terminal lines are wrapped by it."""
_GAP = "  "
_INDENT = " " * (LEVEL_WIDTH + CHECK_WIDTH + 2 * len(_GAP))
_ARROW = "→ "


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
            self._output.print_json(self._to_json(counts))
        else:
            self._output.print()
            self._output.print(_sum_up(counts))
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
        self._output.print(
            Text.assemble(
                (f"{one.level.value:{LEVEL_WIDTH}}", STYLES[one.level]),
                f"{_GAP}{one.check:{CHECK_WIDTH}}{_GAP}{first}",
            )
        )
        for line in more:
            self._output.print(_INDENT + line)
        for line in self._wrap(_ARROW + clean(one.advice)) if one.advice else ():
            self._output.print(Text(_INDENT + line, style="bold"))

    def _wrap(self, text: str) -> list[str]:
        """Return the lines of a text; a word is never cut, so that commands can be copied."""
        width = max(self._output.console.width - len(_INDENT), TEXT_COLUMNS_MIN)
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _to_json(self, counts: Mapping[Level, int]) -> dict[str, Any]:
        return {
            "findings": [
                {
                    "about": about,
                    "check": one.check,
                    "level": one.level.value,
                    "text": one.text,
                    "advice": one.advice,
                }
                for about, one in self._found
            ],
            "problems": counts[Level.PROBLEM],
            "warnings": counts[Level.WARNING],
        }


def _sum_up(counts: Mapping[Level, int]) -> str:
    if not counts[Level.PROBLEM] and not counts[Level.WARNING]:
        return "everything is in order"
    names = {Level.PROBLEM: "problem", Level.WARNING: "warning"}
    parts = [
        f"{count} {name}{'' if count == 1 else 's'}"
        for level, name in names.items()
        if (count := counts[level])
    ]
    return ", ".join(parts)
