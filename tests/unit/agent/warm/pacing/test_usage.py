"""Who uses the processors, and whether they leave room for an import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rallypoint.agent.warm.pacing.usage import (
    Quota,
    Usage,
    leaves_room,
    parse_idle_s,
    parse_quota,
    parse_spent_s,
    read_usage,
)

TICKS = os.sysconf("SC_CLK_TCK")
STAT = f"""\
cpu  9 9 9 9 9 9 9 9 9 9
cpu0 1 2 3 {5 * TICKS} {TICKS} 6 7 8 0 0
cpu1 1 2 3 {7 * TICKS} 0 6 7 8 0 0
cpu12 1 2 3 {9 * TICKS} 0 6 7 8 0 0
intr 12 0 0
"""
SPIN = """
import os, sys
child = os.fork()
while True:
    pass
"""


def between(
    idle_s: float, workers_s: float, processors: int = 8, quota: tuple[float, float] | None = None
) -> tuple[Usage, Usage]:
    """Return two looks, a second apart; `quota` is its processors, and those that were used."""
    before = () if quota is None else (Quota(quota[0], 50.0),)
    after = () if quota is None else (Quota(quota[0], 50.0 + quota[1]),)
    return (
        Usage(10.0, processors, 100.0, 30.0, before),
        Usage(11.0, processors, 100.0 + idle_s, 30.0 + workers_s, after),
    )


@pytest.mark.parametrize(
    ("idle_s", "workers_s", "has_room"),
    [
        (0.0, 8.0, False),
        (3.9, 4.1, False),  # they may sit on the other halves of the same cores
        (4.1, 3.9, True),
        (0.0, 0.05, True),  # others use the processors, and the workers wait
        (2.0, -3.0, False),  # a process of the workers has ended in between
    ],
)
def test_room_is_half_of_the_processors(idle_s: float, workers_s: float, *, has_room: bool) -> None:
    """Beside workers that use them."""
    assert leaves_room(*between(idle_s, workers_s)) is has_room


@pytest.mark.parametrize(
    ("limit", "used", "has_room"), [(2.0, 1.5, False), (4.0, 1.5, True), (16.0, 1.5, True)]
)
def test_room_is_within_the_quota(limit: float, used: float, *, has_room: bool) -> None:
    """A container may have many processors, and few of their time."""
    assert leaves_room(*between(6.5, 1.5, quota=(limit, used))) is has_room


def test_kernel_without_times_leaves_no_room_beside_workers() -> None:
    """Rather slow than in the way."""
    assert not leaves_room(*between(0.0, 1.0))


def test_clock_that_stands_still_divides_nothing() -> None:
    """Two looks at the same moment say nothing."""
    before, _ = between(0.0, 1.0)

    assert leaves_room(before, before)


def test_idle_time_is_that_of_the_allowed_processors() -> None:
    """With the time in which they waited for a disk."""
    assert parse_idle_s(STAT, {0, 12}) == 15.0
    assert parse_idle_s("", {0}) == 0.0


def test_spent_time_is_read_behind_the_name() -> None:
    """Which may have spaces and parentheses."""
    line = f"7 (a) b) R 1 7 7 0 -1 0 0 0 0 0 {2 * TICKS} {TICKS} 99 99 20 0"

    assert parse_spent_s(line) == 3.0
    assert parse_spent_s("") == 0.0


def test_quota_is_read_from_its_cgroup() -> None:
    """One without a limit is none."""
    assert parse_quota("150000 100000\n", "usage_usec 2500000\nuser_usec 1\n") == Quota(1.5, 2.5)
    assert parse_quota("max 100000\n", "usage_usec 2500000\n") is None
    assert parse_quota("", "") is None


def test_what_workers_have_started_counts() -> None:
    """A child of a child uses a processor, and both are seen."""
    with subprocess.Popen([sys.executable, "-c", SPIN], start_new_session=True) as process:
        try:
            before = read_usage(os.getpid())
            after = before
            while after.workers_s - before.workers_s < 0.2:  # it runs at some time
                after = read_usage(os.getpid())
        finally:
            os.killpg(process.pid, 9)

    assert after.processors == len(os.sched_getaffinity(0))
    assert after.idle_s >= before.idle_s
    assert read_usage(0).workers_s == 0.0
