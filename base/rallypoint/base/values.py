"""Values as people write and read them: in flags, in variables, in the options of a job, in tables.

Each parser takes a text, or the value itself where a program gives it, and raises BadValue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeVar

from rallypoint.base.limits import COUNT_MAX, DURATION_MS_MAX

YES = frozenset({"1", "true", "t", "yes", "y", "on"})
NO = frozenset({"0", "false", "f", "no", "n", "off"})
"""What torch takes for yes and no, and the words of switches."""
UNITS = (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1))
"""A unit, its length in s, and the next smaller one."""
MINUTE_MS = 60_000


_Choice = TypeVar("_Choice", bound=Enum)


class BadValue(ValueError):
    """A value that is not accepted. The text begins with the value."""


def truth(value: str | int) -> bool:
    """Parse a word for yes or no, in any case."""
    word = str(value).strip().lower()
    if word not in YES | NO:
        raise BadValue(f"{value!r} is neither true nor false")
    return word in YES


def text(value: str) -> str:
    """Accept any text that is UTF-8: other nodes will read it."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise BadValue(f"{value!r} is not UTF-8") from None
    return str(value)


def whole_number(value: str | float) -> int:
    """Parse a whole number."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadValue(f"{value!r} is not a whole number") from None
    if isinstance(value, float) and number != value:
        raise BadValue(f"{value!r} is not a whole number")
    return number


def positive_int(value: str | float) -> int:
    """Parse a whole number of 1 or more."""
    number = whole_number(value)
    if number < 1:
        raise BadValue(f"{value!r} is not 1 or more")
    return number


def count(most: int) -> Callable[[str | float], int]:
    """Return a parser of whole numbers from 0 to `most`."""

    def parse(value: str | float) -> int:
        number = whole_number(value)
        if number < 0:
            raise BadValue(f"{value!r} is not 0 or more")
        if number > most:
            raise BadValue(f"{value!r} is more than {most}")
        return number

    return parse


def choice(kind: type[_Choice]) -> Callable[[str | _Choice], _Choice]:
    """Return a parser of the values of an enumeration, in any case."""

    def parse(value: str | _Choice) -> _Choice:
        try:
            return value if isinstance(value, kind) else kind(str(value).strip().lower())
        except ValueError:
            names = ", ".join(one.value for one in kind)
            raise BadValue(f"{value!r} is not one of {names}") from None

    return parse


natural_int = count(COUNT_MAX)
"""Parses a whole number of 0 or more."""


def exit_codes(value: str | int | Iterable[int]) -> tuple[int, ...]:
    """Parse exit codes, separated by commas or colons, each 1 to 255; returns each once, sorted."""
    if isinstance(value, str):
        parts: Iterable[str | int] = value.replace(",", " ").replace(":", " ").split()
    else:
        parts = value if isinstance(value, Iterable) else (value,)
    codes = [natural_int(part) for part in parts]
    if not all(1 <= code <= 255 for code in codes):
        raise BadValue(f"{value!r} is not a list of exit codes (1 to 255)")
    return tuple(sorted(set(codes)))


def seconds_ms(value: str | float) -> int:
    """Parse seconds, perhaps with a fraction; returns milliseconds, 0 to 30 days."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadValue(f"{value!r} is not a number of seconds") from None
    if not 0 <= seconds <= DURATION_MS_MAX / 1000:
        raise BadValue(f"{value!r} is not between 0 s and 30 days")
    return round(seconds * 1000)


def positive_seconds_ms(value: str | float) -> int:
    """Parse the seconds of a wait, more than 0; returns milliseconds, from 1 on."""
    if not (milliseconds := seconds_ms(value)):
        raise BadValue(f"{value!r} is too short: give more than 0 s")
    return milliseconds


def seconds_within_ms(low_ms: int, high_ms: int) -> Callable[[str | float], int]:
    """Return a parser of seconds in a range; it returns milliseconds."""

    def parse(value: str | float) -> int:
        milliseconds = seconds_ms(value)
        if not low_ms <= milliseconds <= high_ms:
            raise BadValue(f"{value!r} is not {low_ms / 1000:g} to {high_ms / 1000:g} seconds")
        return milliseconds

    return parse


def describe_ms(ms: int) -> str:
    """Return a time in at most two units."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 10_000:
        return f"{ms // 100 / 10:.1f}s"
    seconds = ms // 1_000
    for unit, size, smaller, smaller_size in UNITS:
        if seconds >= size:
            rest = seconds % size // smaller_size
            return f"{seconds // size}{unit}{rest}{smaller}" if rest else f"{seconds // size}{unit}"
    return f"{seconds}s"


def describe_in_sentence(ms: int, digits: int = 0) -> str:
    """Return a time for a sentence: `12 s`, and from a minute on as in tables: `9m59s`.

    Args:
        ms: how long.
        digits: after the point, of one below a minute.
    """
    return f"{ms / 1000:.{digits}f} s" if ms < MINUTE_MS else describe_ms(ms)
