"""A flag as data: its names, the parser of its value, and its text in --help.

The parser, the variables, --help and the reference in the documentation all follow from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from msgspec import Struct


class Flag(Struct, frozen=True, kw_only=True):
    """One flag of a command."""

    names: tuple[str, ...]
    """One long name, and perhaps a letter before it: `-r`, `--redirects`."""
    help: str
    """Its effect, without the default. Starts in lower case, ends without a full stop."""
    parse: Callable[[str], Any] | None = None
    """Reads the value and raises BadValue for a bad one. None: a switch, True when given."""
    metavar: str = ""
    """Placeholder for the value in --help; empty for a switch."""
    default: Any = None
    """The value when neither the flag nor a variable is given."""
    default_text: str = ""
    """The default in words; empty: not shown."""
    torchrun: str = ""
    """torchrun's default, where it differs."""
    is_repeatable: bool = False
    """Whether it may be given several times; the value is then a list."""
    prints: bool = False
    """Whether the flag only prints something and ends the command; it then has no variable."""

    @property
    def name(self) -> str:
        """The long name, with dashes."""
        return max(self.names, key=len)

    @property
    def dest(self) -> str:
        """The name of the value: `nproc_per_node`."""
        return self.name[2:].replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.parse is None

    def unset(self) -> Any:
        """Return the value of a flag that was not given."""
        if self.is_repeatable:
            return []
        return False if self.is_switch and self.default is None else self.default


class Group(Struct, frozen=True):
    """Flags that --help shows together."""

    title: str
    flags: tuple[Flag, ...]
    note: str = ""
    """One sentence about all of them; empty: none."""


class Operand(Struct, frozen=True, kw_only=True):
    """A word without a flag. Flags may stand before and after it."""

    name: str
    """In capitals: `STATE`."""
    help: str
    """Its meaning. Starts in lower case, ends without a full stop."""
    parse: Callable[[str], Any]
    """Reads the word and raises BadValue for a bad one."""
    is_optional: bool = False
    """Whether it may be left out; those after it may, too. It then has its default."""
    is_repeatable: bool = False
    """Whether several such words may follow, to the end; the value is then a list."""
    default: Any = None

    @property
    def dest(self) -> str:
        """The name of the value: `state`."""
        return self.name.lower()

    @property
    def shown(self) -> str:
        """Return it as --help shows it: `[PREFIX]`, `NODE...`."""
        shown = f"{self.name}..." if self.is_repeatable else self.name
        return f"[{shown}]" if self.is_optional else shown


class Usage(Struct, frozen=True):
    """The flags of a command, and the other texts of its --help."""

    prog: str
    """The command as the user typed it."""
    summary: str
    """The purpose of the command, in one or two sentences; perhaps more paragraphs."""
    groups: tuple[Group, ...]
    operands: tuple[Operand, ...] = ()
    """Its words, in order."""
    takes_program: bool = False
    """Whether a program with its arguments follows the flags, and every flag has a variable."""
    basics: tuple[str, ...] = ()
    """The flags that the short --help shows, in this order; empty: it shows all."""
    examples: tuple[tuple[str, str], ...] = ()
    """The purpose of each example, and its command line without the command itself."""
    notes: tuple[str, ...] = ()
    """Paragraphs at the end of the whole --help."""

    def flags(self) -> Iterator[Flag]:
        """Yield every flag, in the order of --help."""
        for group in self.groups:
            yield from group.flags


class Values(SimpleNamespace):
    """The value of every flag and operand, by its `dest`."""

    prog: str
    """The command as the user typed it: `node-agent` or `rallypoint agent`."""
    given: dict[str, str]
    """The flag or variable that each given value came from. Values left at their default are
    absent."""
    script: str
    """The workers' program; empty if the command takes none."""
    args: list[str]
    """The program's arguments."""

    def source(self, dest: str) -> str:
        """Return the flag or variable that a value came from; the flag for a default."""
        return self.given.get(dest, f"--{dest.replace('_', '-')}")
