"""What a command prints: tables for people, JSON for programs.

JSON is protobuf's mapping of the coordinator's answers: one object, or an array for a list, or an
object on each line for what is followed. Colours appear only on a terminal, and not with NO_COLOR.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from google.protobuf.message import Message

from rallypoint.base.printable import to_printable_line
from rallypoint.base.terminal_text import has_unicode
from rallypoint.cli.operator.common import Format
from rallypoint.cli.terminal import wants_colours

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

GAP = 2
"""Spaces between two columns."""
READABLE_MIN = 32
"""Columns of a flexible cell for which columns that are dispensable give way."""
NAMES_SHARE = 3
"""Names then have at most one part in so many of the width."""
WRAPPED_MIN = 20
"""Columns that a wrapped column keeps; below that, one would read down a tower of words."""
DUMB_TERMINALS = ("dumb", "unknown")
"""Names for which rich takes 80 columns, whatever the terminal has."""
PIPE_COLUMNS = 10_000
"""Width of a table that no terminal shows: no line is cut or wrapped for a program."""


class Output:
    """Standard output of one command. rich is loaded when the first table is printed."""

    def __init__(self, format: Format) -> None:
        """Print in this format."""
        self.format = format

    @property
    def is_json(self) -> bool:
        """Return whether a program reads the output."""
        return self.format is Format.JSON

    @cached_property
    def console(self) -> Console:
        """Return the terminal, or the pipe."""
        from rich.console import Console

        is_terminal = sys.stdout.isatty()
        is_dumb = os.environ.get("TERM", "") in DUMB_TERMINALS
        if is_terminal and not is_dumb:
            width = None  # rich looks at each print: a terminal may change its size meanwhile
        elif is_terminal or os.environ.get("COLUMNS"):
            width = shutil.get_terminal_size().columns
        else:
            width = PIPE_COLUMNS
        colours: Literal["auto"] | None = "auto" if wants_colours(sys.stdout, os.environ) else None
        return Console(
            file=sys.stdout,
            width=width,
            force_terminal=is_terminal,
            color_system=colours,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
        )

    @property
    def has_cursor(self) -> bool:
        """Return whether a view can change in place."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def print(self, line: RenderableType = "") -> None:
        """Print a line, or something of rich, for people."""
        if self.console.is_terminal:
            self.console.print(line)
            return
        with self.console.capture() as captured:
            self.console.print(line)
        text = "".join(f"{one.rstrip()}\n" for one in captured.get().splitlines())
        print(text, end="", flush=True)

    def print_line(self, text: str) -> None:
        """Print what happened; a long line is not wrapped, so that it can be copied."""
        print(to_printable_line(text), flush=True)

    def print_result(self, answer: Message, text: str) -> None:
        """Print the answer to a change: what happened in words, or the answer as JSON."""
        if self.is_json:
            self.print_json(answer)
        else:
            self.print_line(text)

    def note(self, line: str) -> None:
        """Tell a person something that no program reads: on standard error."""
        print(to_printable_line(line), file=sys.stderr, flush=True)

    def print_json(self, value: Message | Mapping[str, Any] | Sequence[Any]) -> None:
        """Print one answer, or an array of several, indented."""
        print(to_json(_plain(value), indent=2), flush=True)

    def print_json_line(self, value: Message | Mapping[str, Any]) -> None:
        """Print one of many answers on a line."""
        print(to_json(_plain(value)), flush=True)

    def print_list(
        self,
        found: Sequence[Message],
        columns: Sequence[str],
        describe: Callable[[Any], Sequence[object]],
        *,
        flexible: str,
        empty: str,
        is_cropped: bool = False,
        dispensable: Sequence[str] = (),
    ) -> None:
        """Print what was found: a table, an array as JSON, or a note that there is nothing.

        Args:
            found: answers of the coordinator.
            columns: headings.
            describe: returns the row of one of them.
            flexible: as for `print_table`, as are `is_cropped` and `dispensable`.
            empty: the note.
            is_cropped: see there.
            dispensable: see there.
        """
        if self.is_json:
            self.print_json(found)
        elif found:
            rows = [describe(one) for one in found]
            self.print_table(
                columns, rows, flexible=flexible, is_cropped=is_cropped, dispensable=dispensable
            )
        else:
            self.note(empty)

    def print_table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        flexible: str = "",
        is_cropped: bool = False,
        dispensable: Sequence[str] = (),
    ) -> None:
        """Print rows below their headings.

        Args:
            columns: headings.
            rows: a cell for each column: a text, or a `rich.text.Text` with a style.
            flexible: heading of the column that gives way in a narrow terminal; empty: all do.
            is_cropped: it is cut instead of wrapped, so that each row is one line.
            dispensable: headings of the columns that are left out, one after the other, where the
                flexible one could not be read beside them. The first column, with names, then has
                at most a third of the width; and the flexible one is wrapped if that is not enough.
        """
        self.print(
            make_table(
                columns,
                rows,
                flexible=flexible,
                is_cropped=is_cropped,
                dispensable=dispensable,
            )
        )


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    flexible: str = "",
    is_cropped: bool = False,
    dispensable: Sequence[str] = (),
) -> RenderableType:
    """Return a table; the arguments are those of `print_table`."""
    return _Rows(columns, [*rows], flexible, is_cropped=is_cropped, dispensable=dispensable)


class _Rows:
    """A table. rich fits one to its console; for thousands of rows that takes seconds."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        flexible: str,
        *,
        is_cropped: bool,
        dispensable: Sequence[str] = (),
        names_max: int | None = None,
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._flexible = flexible
        self._dispensable = dispensable
        self._is_cropped = is_cropped
        self._names_max = names_max

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield self._narrow(options.max_width)._draw(console, options)

    def _narrow(self, most: int) -> _Rows:
        """Return the table without the columns for which there is no room."""
        if not self._dispensable:
            return self
        widths = dict(zip(self._columns, self._measure(), strict=True))
        wish = min(widths[self._flexible], READABLE_MIN)
        name = self._columns[0]
        widths[name] = min(widths[name], max(len(name), most // NAMES_SHARE))
        left = [*self._dispensable]
        while (room := self._find_room(widths, most)) < wish and left:
            del widths[left.pop(0)]
        kept = [self._columns.index(name) for name in widths]
        rows = [[row[at] for at in kept] for row in self._rows]
        is_cropped = self._is_cropped and room >= wish
        return _Rows([*widths], rows, self._flexible, is_cropped=is_cropped, names_max=widths[name])

    def _find_room(self, widths: Mapping[str, int], most: int) -> int:
        """Return how many columns the flexible one has beside the others."""
        others = sum(widths.values()) - widths[self._flexible]
        return most - others - GAP * (len(widths) - 1)

    def _measure(self) -> list[int]:
        """Return how wide each column is if nothing is cut or wrapped."""
        from rich.cells import cell_len

        rows = [self._columns, *([clean(cell) for cell in row] for row in self._rows)]
        return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]

    def _share(self, most: int) -> list[int]:
        """Return how wide each column is here: the flexible one gives way, then the widest."""
        widths = self._measure()
        widths[0] = min(widths[0], self._names_max or widths[0])
        room = most - GAP * (len(widths) - 1)
        if self._flexible:
            at = self._columns.index(self._flexible)
            least = len(self._flexible) if self._is_cropped else min(widths[at], WRAPPED_MIN)
            widths[at] = max(least, min(widths[at], room - sum(widths) + widths[at]))
        while (excess := sum(widths) - room) > 0:
            first, *others = sorted(set(widths), reverse=True)
            widest = [at for at, width in enumerate(widths) if width == first]
            step = min(first - others[0] if others else excess, -(-excess // len(widest)))
            for at in widest:
                widths[at] = max(1, first - step)
            if first == 1:
                break
        return widths

    def _draw(self, console: Console, options: ConsoleOptions) -> Text:
        """Return the table as one text, in columns that share what the console has."""
        from rich.cells import cell_len, set_cell_size
        from rich.text import Text

        widths = self._share(options.max_width)
        wrapped = None if self._is_cropped else self._flexible

        def fit(words: str, name: str, width: int) -> list[str]:
            if cell_len(words) <= width:
                return [words]
            if name == wrapped:
                return [line.plain for line in Text(words).wrap(console, width, overflow="fold")]
            is_plain = options.ascii_only
            return [
                set_cell_size(words, width) if is_plain else set_cell_size(words, width - 1) + "…"
            ]

        whole = Text(no_wrap=True, overflow="ignore", end="")
        for row in (self._columns, *self._rows):
            own = "bold" if row is self._columns else ""
            styles = [cell.style if isinstance(cell, Text) else own for cell in row]
            cells = [
                fit(clean(cell), name, width)
                for cell, name, width in zip(row, self._columns, widths, strict=True)
            ]
            for line in zip_longest(*cells, fillvalue=""):
                for words, style, width in zip(line, styles, widths, strict=True):
                    whole.append(words + " " * (width - cell_len(words) + GAP), style or None)
                whole.append("\n")
        return whole


def clean(value: object) -> str:
    """Return a cell: one printable line, `-` for nothing."""
    text = "" if value is None else str(value)
    return to_printable_line(text) or "-"


def to_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON, with an escape for each character that is not printable."""
    text = json.dumps(value, indent=indent, ensure_ascii=not has_unicode(sys.stdout))
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _escape(char) for char in text)


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) > 0x7F else f"\\u{ord(char):04x}"


def _plain(value: object) -> object:
    if isinstance(value, Message):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value, always_print_fields_with_no_presence=True)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value
