"""What may stand at the cursor of a command line. Pure, given the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct

from rallypoint.cli.flags.argv import BadArgument
from rallypoint.cli.flags.flag import Flag, Operand
from rallypoint.cli.flags.parser import Parser


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
_CURSOR = "\0"
"""A word that no one types, in place of the one at the cursor."""


def find_wanted(path: Sequence[str], parser: Parser, words: Sequence[str]) -> Wanted:
    """Return what may stand at the cursor.

    Args:
        path: the words that have chosen the command, such as ("kv", "get").
        parser: of the command.
        words: those after it; the last is typed up to the cursor, and may be empty.
    """
    *before, begun = words
    try:
        line = parser.split([*before, _CURSOR])
    except BadArgument:
        return Wanted(Kind.NOTHING)
    given, at_cursor = dict[str, list[str]](), list[Flag | Operand]()
    pairs: list[tuple[Flag | Operand, str]] = [(one.flag, one.value or "") for one in line.flags]
    operands = list(parser.operands)
    for word in line.program if operands else ():
        pairs.append((operands[0], word))
        if not operands[0].is_repeatable and not (operands := operands[1:]):
            break
    for one, value in pairs:
        if value == _CURSOR:
            at_cursor.append(one)
        else:
            given.setdefault(one.dest, []).append(value)
    is_value = any(isinstance(one, Flag) for one in at_cursor)
    if begun.startswith("-") and "--" not in before and not is_value:
        return _option(parser.known(), path, begun, given)
    return _value_of(at_cursor[0], path, begun, given) if at_cursor else Wanted(Kind.NOTHING)


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
