"""Sets of ranks as ranges: (first, last) pairs, ascending, with a gap between any two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]
"""First and last number."""


def to_ranges(numbers: Iterable[int]) -> tuple[Range, ...]:
    """Return the ranges of some numbers, in any order."""
    ranges: list[Range] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def add_to_ranges(ranges: Sequence[Range], number: int) -> tuple[Range, ...]:
    """Return the ranges with one more number."""
    before = [span for span in ranges if span[1] < number - 1]
    after = [span for span in ranges if span[0] > number + 1]
    near = [span for span in ranges if span[1] >= number - 1 and span[0] <= number + 1]
    first = min([number, *(span[0] for span in near)])
    last = max([number, *(span[1] for span in near)])
    return (*before, (first, last), *after)


def remove_from_ranges(ranges: Sequence[Range], number: int) -> tuple[Range, ...]:
    """Return the ranges without one number."""
    left: list[Range] = []
    for first, last in ranges:
        cut = [(first, number - 1), (number + 1, last)] if first <= number <= last else []
        left += [span for span in cut or [(first, last)] if span[0] <= span[1]]
    return tuple(left)


def is_in_ranges(ranges: Sequence[Range], number: int) -> bool:
    """Return whether a number is in one of the ranges."""
    return any(first <= number <= last for first, last in ranges)


def join_ranges(ranges: Sequence[Range]) -> str:
    """Return the ranges in words: "0-3,7"."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
