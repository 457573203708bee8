"""Text that people read on a console: what is printable, and how other text becomes so.

A control character can move the cursor, change the title of a window or hide a line. So texts from
other processes are cleaned before they are printed.
"""

from __future__ import annotations

import re
import unicodedata

_ESCAPE_SEQUENCES = (
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor: ECMA-48, control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles and links: operating system commands
)
"""Text, not a compiled pattern: `re` compiles it when it is first used, not at import."""
_KEPT = "\n\t"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def is_printable_lines(text: str) -> bool:
    """Return whether a text consists of printable characters, newlines and tabs."""
    return text.replace("\n", "").replace("\t", "").isprintable()


def to_printable_line(text: str) -> str:
    """Return one printable line: newlines and tabs become spaces, see `to_printable_lines`."""
    if text.isprintable():
        return text
    return "".join(" " if char in _KEPT else char for char in to_printable_lines(text))


def to_printable_lines(text: str) -> str:
    """Return a text of printable characters, newlines and tabs.

    Escape sequences, such as colours, and invisible characters are removed. Other control
    characters become U+FFFD, and other white space becomes a space.
    """
    if is_printable_lines(text):
        return text
    plain = re.sub(_ESCAPE_SEQUENCES, "", text).replace("\r\n", "\n").replace("\r", "\n")
    return plain.translate({ord(char): _to_printable(char) for char in set(plain)})


def _to_printable(char: str) -> str:
    if char.isprintable() or char in _KEPT:
        return char
    if char.isspace():
        return " "
    return "" if unicodedata.category(char) == "Cf" else REPLACEMENT
