"""Ranks as ranges, against sets of numbers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from rallypoint.base.ranges import (
    Range,
    add_to_ranges,
    is_in_ranges,
    join_ranges,
    remove_from_ranges,
    to_ranges,
)


def numbers_of(ranges: tuple[Range, ...]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def test_ranges_do_what_sets_do() -> None:
    """Whatever is added and removed, in any order: the same numbers, in the fewest ranges."""
    rng = Random(1)
    for _ in range(200):
        numbers: set[int] = set()
        ranges: tuple[Range, ...] = ()
        for _ in range(20):
            number = rng.randrange(12)
            if rng.random() < 0.6:
                numbers.add(number)
                ranges = add_to_ranges(ranges, number)
            else:
                numbers.discard(number)
                ranges = remove_from_ranges(ranges, number)

            assert numbers == numbers_of(ranges)
            assert to_ranges(numbers) == ranges
            assert all(left[1] + 1 < right[0] for left, right in pairwise(ranges))
            assert [n in numbers for n in range(12)] == [is_in_ranges(ranges, n) for n in range(12)]


def test_ranges_are_written_as_people_write_them() -> None:
    """A single rank stands alone."""
    assert "" == join_ranges(())
    assert "0-3,7" == join_ranges(to_ranges([7, 0, 1, 3, 2]))
