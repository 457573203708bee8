"""A command that only chooses another one: its --help, its --version, and its errors.

`rallypoint` is one, and `rallypoint journal` is another. A new command is one more row of a menu,
and one more function in the table of those that run the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from msgspec import Struct

from rallypoint.cli.flags.parser import fail

NAME_WIDTH = 14
"""Columns for a name in --help."""
LISTED_MAX = 8
"""Most commands that an error lists."""


class Menu(Struct, frozen=True, kw_only=True):
    """The commands that follow a word."""

    prog: str
    """The words so far, as a person types them."""
    summary: str
    """What the commands are for, in one line of at most 80 columns."""
    commands: dict[str, str]
    """What --help says about each command, in its order."""
    examples: tuple[str, ...] = ()
    """Command lines, without `prog`."""
    headings: dict[str, str] = {}
    """In --help, before the command of this name; empty: one heading for all."""
    aliases: dict[str, str] = {}
    """Other names that a person may try, and the command that each of them means."""

    def help(self) -> str:
        """Return the text of --help."""
        return "\n".join(
            (
                self.summary,
                "",
                f"Usage: {self.prog} <command> [flags]",
                "",
                *self._rows(),
                "",
                "Flags:",
                f"  {'-h, --help':{NAME_WIDTH}}show this help; --help-all is the same",
                f"  {'--version':{NAME_WIDTH}}show the version",
                *(("", "Examples:") if self.examples else ()),
                *(f"  {self.prog} {words}" for words in self.examples),
                "",
                f"Flags of a command: {self.prog} <command> --help",
            )
        )

    def _rows(self) -> Iterator[str]:
        """Yield a line for each command, below its heading."""
        if not self.headings:
            yield "Commands:"
        for at, (name, meaning) in enumerate(self.commands.items()):
            if name in self.headings:
                yield from ("",) if at else ()
                yield f"{self.headings[name]}:"
            yield f"  {name:{NAME_WIDTH}}{meaning}"

    def choose(self, argv: Sequence[str]) -> tuple[str, list[str]]:
        """Return the chosen command and its arguments; print and exit for anything else."""
        if not argv:
            few = len(self.commands) <= LISTED_MAX
            self._fail("no command given" + (f": {_or(tuple(self.commands))}" if few else ""))
        name, *words = argv
        if name in ("-h", "--help", "--help-all"):
            print(self.help())
            sys.exit(0)
        if name == "--version":
            from importlib.metadata import version

            print(f"{self.prog} {version('rallypoint')}")
            sys.exit(0)
        if name not in self.commands:
            is_flag = name.startswith("-") and name != "-"
            kind = f"flag {name}" if is_flag else f"command {name!r}"
            self._fail(f"unknown {kind}{self._suggest(name)}")
        return name, words

    def _suggest(self, name: str) -> str:
        import difflib  # slow to import, and only an error needs it

        near = difflib.get_close_matches(name, (*self.commands, *self.aliases), n=1)
        return f"; did you mean {self.aliases.get(near[0], near[0])}?" if near else ""

    def _fail(self, message: str) -> NoReturn:
        fail(self.prog, f"{message} (see {self.prog} --help)")


def _or(names: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
