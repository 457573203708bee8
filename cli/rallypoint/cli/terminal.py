"""What the terminal of standard error can show: its colours, and how much fits on a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TextIO

COLUMNS_MIN = 40
"""In a narrower terminal lines are left to it."""


def wants_colours(file: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether to use colours: on a terminal that has them, unless NO_COLOR is set."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return file.isatty()


def find_columns(file: TextIO) -> int:
    """Return how many columns the terminal has now; 0: lines are not wrapped for this file."""
    if not file.isatty():
        return 0
    try:
        columns = os.get_terminal_size(file.fileno()).columns
    except OSError:  # it is gone
        return 0
    return columns if columns >= COLUMNS_MIN else 0


def join_words(
    words: Iterable[tuple[str, int]], columns: int, indent: int, *, used: int = 0
) -> str:
    """Return words with a space before each but the first of a line; no word is broken.

    Args:
        words: each with its width, which is not that of its text if that has colours.
        columns: width of a line; 0: everything is on one.
        indent: of all lines but the first, in columns.
        used: columns of the first line that are taken by what stands before the words.
    """
    parts = list[str]()
    for word, width in words:
        if columns and used > indent and used + 1 + width > columns:
            parts.append("\n" + " " * indent + word)
            used = indent + width
        else:
            parts.append(f" {word}" if used else word)
            used += width + bool(used)
    return "".join(parts)
