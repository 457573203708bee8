"""The words of a command line: which are our flags, however spelt, and where the program begins.

Everything follows from the flags themselves: what one of them is called, and whether it takes a
value. The program and its arguments are never looked at.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

_NEGATIVE_NUMBER = re.compile(r"-(\d+|\d*\.\d+)")
"""A value, not a flag: what it is for can say better than we that it must not be negative."""
_LIKENESS = 0.75
"""Of 1: --n-nodes is like --nnodes, but --nope is like nothing."""


class BadWord(Exception):
    """A word before the program that is no flag of ours, or a flag without its value."""


@dataclass(frozen=True, slots=True)
class Given:
    """One flag of a command line."""

    flag: argparse.Action
    value: str | None
    """None for a switch that was just given."""

    def name(self) -> str:
        """Return the flag's longest name."""
        return max(self.flag.option_strings, key=len)

    def word(self) -> str:
        """Return the one word that says the same to argparse, whatever the value begins with."""
        return self.name() if self.value is None else f"{self.name()}={self.value}"


@dataclass(frozen=True, slots=True)
class Line:
    """A command line."""

    flags: tuple[Given, ...]
    """As they were given, a repeated one several times."""
    program: tuple[str, ...]
    """The program and its arguments, untouched; empty if there is none."""


def read_line(
    argv: Sequence[str], known: Mapping[str, argparse.Action], shortened: Collection[str]
) -> Line:
    """Split a command line into flags and program.

    `--a_b` is `--a-b`; a value follows its flag, or `=`, or for one letter nothing at all; the
    first word that is neither begins the program, and `--` stands before it if it looks like a
    flag.

    Args:
        argv: the words without the command itself.
        known: every flag by each of its names, dashes included.
        shortened: the long names that may also be given by a beginning that only one of them has.

    Raises:
        BadWord: for the first word that makes no sense, in words for a person.
    """
    words, found = list(argv), list[Given]()
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            flag = _find_long(name, known, shortened)
            found.append(_give(flag, value if equals else None, name, words))
        else:
            found.extend(_read_letters(word, known, words))
    return Line(tuple(found), tuple(words))


def _read_letters(
    word: str, known: Mapping[str, argparse.Action], words: list[str]
) -> Iterator[Given]:
    """Read flags of one letter: several switches in one word, the last may be one with a value."""
    letters = word[1:]
    while letters:
        name, letters = f"-{letters[0]}", letters[1:]
        flag = known.get(name)
        if flag is None:
            raise BadWord(_unknown(word, known))
        if flag.nargs == 0 and not letters.startswith("="):
            yield Given(flag, None)
        else:
            yield _give(flag, letters.removeprefix("=") if letters else None, name, words)
            return


def _give(flag: argparse.Action, value: str | None, name: str, words: list[str]) -> Given:
    """Pair a flag with its value, taken from `words` if it is not there yet."""
    if value is not None or flag.nargs == 0:
        return Given(flag, value)
    if not words:
        raise BadWord(f"{name} needs a value")
    if words[0].startswith("-") and words[0] != "-" and not _NEGATIVE_NUMBER.fullmatch(words[0]):
        raise BadWord(f"{name} needs a value; if {words[0]} is meant, write {name}={words[0]}")
    return Given(flag, words.pop(0))


def _find_long(
    name: str, known: Mapping[str, argparse.Action], shortened: Collection[str]
) -> argparse.Action:
    spelt = name.replace("_", "-")
    if spelt in known:
        return known[spelt]
    longer = sorted(full for full in shortened if full.startswith(spelt) and full in known)
    if len({id(known[full]) for full in longer}) > 1:
        raise BadWord(f"{name} may be {', '.join(longer)}")
    if not longer:
        raise BadWord(_unknown(name, known))
    return known[longer[0]]


def _unknown(name: str, known: Mapping[str, argparse.Action]) -> str:
    spelt = name.replace("_", "-")
    near = [full for full in known if full.startswith(spelt)]
    near = near or difflib.get_close_matches(spelt, known, n=1, cutoff=_LIKENESS)
    return f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "")
