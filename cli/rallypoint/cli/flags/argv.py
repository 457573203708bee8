"""Splits a command line into flags, in any accepted spelling, and the program with its arguments.

Everything follows from the flags: their names, and whether they take a value. The words of the
program and its arguments are never read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from rallypoint.cli.flags.flag import Flag

# Text, not a compiled pattern: `re` compiles it when it is first used, not at import.
_NEGATIVE_NUMBER = r"-(\d+|\d*\.\d+)"
"""A value, not a flag. The flag's own parser explains best why it must not be negative."""
_SIMILARITY_MIN = 0.75
"""Of 1: --n-nodes is similar to --nnodes, but --nope is similar to nothing."""


class BadArgument(Exception):
    """A word before the program that is not a flag, or a flag without its value."""


class Given(Struct, frozen=True):
    """One flag of a command line."""

    flag: Flag
    value: str | None
    """None for a switch."""


class CommandLine(Struct, frozen=True):
    """A command line, split."""

    flags: tuple[Given, ...]
    """In the order given; a repeated flag occurs several times."""
    program: tuple[str, ...]
    """The program and its arguments, unchanged; empty if there is none."""


def split_argv(
    argv: Sequence[str], known: Mapping[str, Flag], shortenable: Collection[str]
) -> CommandLine:
    """Split a command line into flags and program.

    `--a_b` is `--a-b`. A value follows its flag, or `=`, or directly a one-letter flag. The first
    word that is neither flag nor value begins the program; `--` must precede a program that looks
    like a flag.

    Args:
        argv: the words without the command itself.
        known: every flag by each of its names, dashes included.
        shortenable: the long names that may be shortened to a unique prefix.

    Raises:
        BadArgument: for the first invalid word, with a text for the user.
    """
    words, flags = list(argv), list[Given]()
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            flag = _find_long(name, known, shortenable)
            flags.append(_give(flag, value if equals else None, name, words))
        else:
            flags.extend(_read_letters(word, known, words))
    return CommandLine(tuple(flags), tuple(words))


def _read_letters(word: str, known: Mapping[str, Flag], words: list[str]) -> Iterator[Given]:
    """Read one-letter flags: several switches in one word, of which the last may take a value."""
    letters = word[1:]
    while letters:
        name, letters = f"-{letters[0]}", letters[1:]
        flag = known.get(name)
        if flag is None:
            raise BadArgument(_unknown(word, known))
        if flag.is_switch and not letters.startswith("="):
            yield Given(flag, None)
        else:
            yield _give(flag, letters.removeprefix("=") if letters else None, name, words)
            return


def _give(flag: Flag, value: str | None, name: str, words: list[str]) -> Given:
    """Pair a flag with its value: the one given with the flag, else the next of `words`."""
    if flag.is_switch:
        if value is not None:
            raise BadArgument(f"{name} takes no value")
        return Given(flag, None)
    if value is not None:
        return Given(flag, value)
    if not words:
        raise BadArgument(f"{name} needs a value")
    if (
        words[0].startswith("-")
        and words[0] != "-"
        and not re.fullmatch(_NEGATIVE_NUMBER, words[0])
    ):
        raise BadArgument(f"{name} needs a value; if {words[0]} is meant, write {name}={words[0]}")
    return Given(flag, words.pop(0))


def _find_long(name: str, known: Mapping[str, Flag], shortenable: Collection[str]) -> Flag:
    spelled = name.replace("_", "-")
    if spelled in known:
        return known[spelled]
    longer = sorted(full for full in shortenable if full.startswith(spelled) and full in known)
    if len({known[full].name for full in longer}) > 1:
        raise BadArgument(f"{name} is ambiguous: {', '.join(longer)}")
    if not longer:
        raise BadArgument(_unknown(name, known))
    return known[longer[0]]


def _unknown(name: str, known: Mapping[str, Flag]) -> str:
    import difflib  # slow to import, and only an error needs it

    spelled = name.replace("_", "-")
    near = [full for full in known if full.startswith(spelled)]
    if len(spelled) == 2:  # -c of other commands
        near = [full for full in known if full.startswith(f"-{spelled}")]
    near = near or difflib.get_close_matches(spelled, known, n=1, cutoff=_SIMILARITY_MIN)
    return f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "")
