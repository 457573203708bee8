"""The encoding of what a person reads, and how text looks where that has only ASCII.

Python writes UTF-8 also in the locale C; a terminal of that locale shows it as garbage. So what the
environment says counts; without a word of it, UTF-8 does.
"""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Mapping
from typing import BinaryIO, TextIO

UTF_8 = "utf-8"
ERRORS = "rallypoint.plain"
"""Name of the handler that replaces characters which an encoding does not have."""
_LOCALES = ("LC_ALL", "LC_CTYPE", "LANG")
"""Variables that name a locale; the first one that is set counts."""
_PLAIN = {"…": "...", "→": "->"}
"""What stands for the characters of our own texts."""


def find_encoding(environment: Mapping[str, str]) -> str:
    """Return the encoding that the environment asks for, as Python does but for the locale C."""
    named = environment.get("PYTHONIOENCODING", "").partition(":")[0]
    if not named and environment.get("PYTHONUTF8") != "1":
        locale = next((environment[name] for name in _LOCALES if environment.get(name)), "")
        is_c = locale in ("C", "POSIX")
        named = "ascii" if is_c else locale.partition(".")[2].partition("@")[0]
    try:
        "".encode(named)
    except LookupError:
        return UTF_8
    return codecs.lookup(named).name


def open_text(raw: BinaryIO) -> io.TextIOWrapper:
    """Return a text file that writes to a binary one at once, in the encoding of the terminal."""
    encoding = find_encoding(os.environ)
    return io.TextIOWrapper(raw, encoding=encoding, errors=ERRORS, write_through=True)


def has_unicode(file: TextIO) -> bool:
    """Return whether a text file takes every character as it is."""
    return (file.encoding or UTF_8).lower() == UTF_8


def encode(text: str) -> bytes:
    """Return a text in the encoding of the terminal."""
    return text.encode(find_encoding(os.environ), ERRORS)


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    char = error.object[error.start]
    if char in _PLAIN:
        return _PLAIN[char], error.start + 1
    error.end = error.start + 1
    return codecs.backslashreplace_errors(error)


codecs.register_error(ERRORS, _replace)
