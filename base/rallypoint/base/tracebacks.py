"""Finds the errors that Python prints as tracebacks, and the line of a stack that matters.

The agent looks for the error that a worker is ending with; the coordinator looks for the cause of a
failure. Both read the same output, so both use this parser. It is pure: text in, values out.

Real output differs from a plain traceback in four ways:

  * torch's exception hook writes the rank before every line: `[rank1]: `, and a bare `[rank1]:`
    before an empty line.
  * A progress bar ends without a line break, so the header of a traceback can share its line.
  * Only the end of the output is kept, so the first traceback may have lost its head.
  * Threads, destructors and child processes print tracebacks too. The line before the header says
    so; such an error did not end the worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

HEADER = "Traceback (most recent call last):"
"""The line above every stack."""
NAME_CHARS_MAX = 64
"""Characters of a file's name, and of a function's, in a line for a person."""

# Text, not compiled patterns: `re` compiles them when they are first used, not at import.
_RANK_PREFIX = r"^\[rank\d+\]:(?: |$)"
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_ELSEWHERE = r"Exception in thread |Exception ignored in|Process \S+-\d+:$"
_INNER = ("Original ", "Exception Group ", "| ")
"""Text before a header that belongs to an error's message or to a group of errors."""
_NOT_THE_USERS = (
    r"^<"  # frozen modules, and code without a file
    r"|/(?:site|dist)-packages/(?:torch|rallypoint)/"
    r"|/lib(?:64)?/python3\.\d+t?/(?!(?:site|dist)-packages/)"
)


class Frame(Protocol):
    """One frame of a stack, of any kind."""

    @property
    def function(self) -> str:
        """Its name; empty if not known."""

    @property
    def file(self) -> str:
        """Its path; empty if not known."""

    @property
    def line(self) -> int:
        """Its number; 0 if not known."""


class PrintedError(NamedTuple):
    """One error with its stack. Positions are indices of the lines that were searched."""

    headline: str
    """The line after the stack: "ValueError: loss is nan"."""
    begin: int
    """Index of the header, or 0 when the head of the stack was cut off."""
    end: int
    """Index of the line after the headline."""
    is_chained: bool
    """The error before this one caused it, or was being handled when it occurred."""
    is_elsewhere: bool
    """A thread, a destructor or a child process printed it."""
    is_cut: bool
    """The head of its stack is missing."""


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without torch's rank prefix."""
    lines = text.splitlines()
    if "[rank" not in text:
        return lines
    return [re.sub(_RANK_PREFIX, "", line) for line in lines]


def is_header(line: str) -> bool:
    """Return whether a stack begins after this line."""
    if not line.endswith(HEADER):
        return False
    before = line[: -len(HEADER)]
    return not before or not (before.isspace() or before.endswith(_INNER))


def find_errors(lines: Sequence[str]) -> Iterator[PrintedError]:
    """Return the errors in the order of the text; a stack without a headline is left out."""
    is_cut = next((line.startswith("  ") for line in lines if line), False)
    begin, is_chained, is_elsewhere = (0 if is_cut else None), False, False
    before = ""  # the last line that is not empty
    for at, line in enumerate(lines):
        if not line:
            continue
        if is_header(line):
            begin, is_cut = at, False
            is_chained = before.startswith(_CHAINED)
            is_announced = re.search(_ELSEWHERE, before) is not None
            is_elsewhere = (is_chained and is_elsewhere) or is_announced
        elif begin is not None and not line[0].isspace():
            yield PrintedError(line, begin, at + 1, is_chained, is_elsewhere, is_cut)
            begin = None
        before = line


def find_last_chain(lines: Sequence[str]) -> list[PrintedError]:
    """Return the last error of the main thread after the errors that led to it, cause first."""
    chain: list[PrintedError] = []
    for error in find_errors(lines):
        if error.is_elsewhere:
            continue
        if not error.is_chained:
            chain = []
        chain.append(error)
    return chain


def describe_place(frames: Sequence[Frame]) -> str:
    """Return where a stack stands, such as "train.py:88 load_batch"; "" without a stack.

    That is the innermost frame outside torch, Rallypoint and the standard library, if there is one:
    it leads a person to the line of the script.

    Args:
        frames: the innermost first.
    """
    if not frames:
        return ""
    frame = next((one for one in frames if not re.search(_NOT_THE_USERS, one.file)), frames[0])
    file = frame.file.rpartition("/")[2][-NAME_CHARS_MAX:]
    line = f":{frame.line}" if frame.line else ""
    return " ".join(part for part in (file + line, frame.function[:NAME_CHARS_MAX]) if part)
