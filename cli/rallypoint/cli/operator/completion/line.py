"""What may stand at the cursor of a command line. Pure, given the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct

from rallypoint.cli.flags.flag import Flag, Operand, Usage


class Kind(Enum):
    """Where the candidates come from."""

    NOTHING = "nothing"
    WORDS = "words"
    """They are known: `Wanted.words`."""
    FILES = "files"
    JOBS = "jobs"
    NODES = "nodes"
    """Of the job on the command line."""
    BARRIERS = "barriers"
    """The same."""
    CONTEXTS = "contexts"
    EVENTS = "events"
    """Their kinds."""


class Wanted(Struct, frozen=True):
    """What may stand at the cursor."""

    kind: Kind
    begun: str = ""
    """What is typed of it."""
    prefix: str = ""
    """What stands before it in the same word: `--context=`."""
    words: Mapping[str, str] = {}
    """Candidates, and what each means."""
    given: Mapping[str, Sequence[str]] = {}
    """Values on the command line, by the name of the parameter."""


_BY_METAVAR = {
    "JOB": Kind.JOBS,
    "PREFIX": Kind.JOBS,
    "NODE": Kind.NODES,
    "BARRIER": Kind.BARRIERS,
    "CONTEXT": Kind.CONTEXTS,
    "FILE": Kind.FILES,
    "KIND": Kind.EVENTS,
}
_CONTEXT = "context"


def find_wanted(path: Sequence[str], usage: Usage, words: Sequence[str]) -> Wanted:
    """Return what may stand at the cursor.

    Args:
        path: the words that have chosen the command, such as ("kv", "get").
        usage: of the command.
        words: those after it; the last is typed up to the cursor, and may be empty.
    """
    *before, begun = words
    reader = _Reader(usage)
    for word in before:
        reader.take(word)
    if reader.open_option is not None:
        return _value_of(reader.open_option, path, begun, reader.given)
    if begun.startswith("-") and not reader.is_ended:
        return _option(reader.options, path, begun, reader.given)
    at = reader.next_argument
    return Wanted(Kind.NOTHING) if at is None else _value_of(at, path, begun, reader.given)


class _Reader:
    """Reads the words before the cursor, as far as they make sense."""

    def __init__(self, usage: Usage) -> None:
        self.options = {name: flag for flag in usage.flags() for name in flag.names}
        self.given = dict[str, list[str]]()
        self.open_option: Flag | None = None
        """It takes the next word."""
        self.is_ended = False
        """No further word is an option."""
        self._operands = usage.operands
        self._seen = 0

    @property
    def next_argument(self) -> Operand | None:
        """Return the one that the next word is; the last may take many. None: there is none."""
        if self._seen < len(self._operands):
            return self._operands[self._seen]
        last = self._operands[-1] if self._operands else None
        return last if last is not None and last.is_repeatable else None

    def take(self, word: str) -> None:
        """Read the next word."""
        if self.open_option is not None:
            self._give(self.open_option, word)
            self.open_option = None
        elif word == "--" and not self.is_ended:
            self.is_ended = True
        elif word.startswith("-") and len(word) > 1 and not self.is_ended:
            self._take_option(word)
        else:
            if self.next_argument is not None:
                self._give(self.next_argument, word)
            self._seen += 1

    def _take_option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        one = self.options.get(name)
        if one is None:
            return
        if one.is_switch or equals:
            self._give(one, value)
        else:
            self.open_option = one

    def _give(self, one: Flag | Operand, value: str) -> None:
        self.given.setdefault(one.dest, []).append(value)


def _option(
    options: Mapping[str, Flag], path: Sequence[str], begun: str, given: Mapping[str, Sequence[str]]
) -> Wanted:
    name, equals, value = begun.partition("=")
    if equals and name in options:
        found = _value_of(options[name], path, value, given)
        return Wanted(found.kind, value, f"{name}=", found.words, given)
    words = {
        name: one.help.partition(" [")[0]
        for name, one in options.items()
        if name.startswith("--") and not one.prints
    }
    return Wanted(Kind.WORDS, begun, words=words, given=given)


def _value_of(
    one: Flag | Operand, path: Sequence[str], begun: str, given: Mapping[str, Sequence[str]]
) -> Wanted:
    """Return what may be the value of a parameter: its placeholder in --help says it."""
    placeholder = one.metavar if isinstance(one, Flag) else one.name
    choices = placeholder.split("|")
    if len(choices) > 1 and placeholder == placeholder.lower():
        return Wanted(Kind.WORDS, begun, words=dict.fromkeys(choices, ""), given=given)
    kind = _BY_METAVAR.get(placeholder, Kind.NOTHING)
    if placeholder == "PREFIX" and path[0] != "jobs":
        kind = Kind.NOTHING  # of keys, which only workers may read
    is_context = one.dest == _CONTEXT or path[:1] == (_CONTEXT,)
    if placeholder == "NAME" and is_context and one.dest != "tls_server_name":
        kind = Kind.CONTEXTS
    return Wanted(kind, begun, given=given)
