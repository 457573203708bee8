"""When workers stand still, by what looks at them have found. Times in ms of the agent's clock."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.agent.evidence.processes import Usage
from rallypoint.agent.evidence.progress import Limits, NodeProgress, Observation, begin
from rallypoint.agent.evidence.recorder import Mark

LIMITS = Limits(10_000, 60_000)
WALL_MS = 1_800_000_000_000
"""The wall clock at 0."""


def mark(newest: int, at_ms: int, ended: int = 0) -> Mark:
    """Return a recorder whose latest operation was entered at this time."""
    return Mark(True, newest, ended, (WALL_MS + at_ms) * 1_000_000)


def seen(
    mark: Mark | None = None, *, cpu_ms: int = 0, written: int = 0, **more: Any
) -> Observation:
    usage = more.pop("usage", {7: Usage(cpu_ms, written)})
    return Observation(worker_id=more.pop("worker_id", 1), usage=usage, mark=mark, **more)


class Bench:
    """Looks at a node when that is due."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.now = begin(limits, 0, WALL_MS * 1_000_000)
        self.jump_ms = 0
        """Of the wall clock."""

    def look(self, *found: Observation, at_ms: int | None = None, **more: bool) -> NodeProgress:
        at_ms = self.now.due_ms if at_ms is None else at_ms
        wall_ns = (WALL_MS + self.jump_ms + at_ms) * 1_000_000
        self.now = self.now.looked(found, at_ms, wall_ns, **more)
        return self.now

    def stands_still_at(self, *found: Observation) -> int:
        """Return when the node stands still, if each look finds the same."""
        while self.look(*found).still_since_ms is None:
            assert self.now.looked_ms < 1_000_000
        return self.now.looked_ms


def test_training_is_looked_at_once_per_limit() -> None:
    """An operation a moment before each look puts the next one off by the whole limit."""
    bench = Bench()
    times = []
    for number in range(5):
        times.append(bench.now.due_ms)
        bench.look(seen(mark(number, bench.now.due_ms - 10)))

    assert times == [6_000, 15_990, 25_980, 35_970, 45_960]
    assert bench.now.still_since_ms is None


def test_last_operation_dates_the_standstill() -> None:
    """Not the look that has found it; then a look each second finds the next one."""
    bench = Bench()
    bench.look(seen(mark(1, 5_500)))
    bench.look(seen(mark(2, 7_000)))
    assert (bench.now.looked_ms, bench.now.due_ms) == (15_500, 17_000)
    bench.look(seen(mark(2, 7_000)))

    assert (bench.now.looked_ms, bench.now.still_since_ms, bench.now.due_ms) == (
        *(17_000, 7_000, 18_000),
    )
    assert bench.look(seen(mark(2, 7_000))).still_since_ms == 7_000
    assert bench.look(seen(mark(3, 18_500))).still_since_ms is None
    assert bench.now.due_ms == 28_500


def test_end_of_an_operation_moves_a_node_that_stands_still() -> None:
    """Gloo says of an end only that it has come."""
    bench = Bench()
    assert bench.stands_still_at(seen(mark(1, 5_000))) == 15_000

    assert bench.look(seen(mark(1, 5_000, ended=1))).still_since_ms is None


@pytest.mark.parametrize(
    ("others", "expected_ms"),
    [
        ([seen(mark(1, 4_000), worker_id=2)], 15_000),
        ([seen(mark(1, 5_900), worker_id=2)], 15_900),
        ([seen(worker_id=2)], 60_000),
        ([seen(worker_id=2, is_traced=True)], None),
        ([seen(mark(1, 4_000), worker_id=2, usage=None)], None),
    ],
)
def test_all_workers_have_to_stand_still(
    others: list[Observation], expected_ms: int | None
) -> None:
    """Each for its own limit; one that cannot be seen, or that a debugger holds, never does."""
    bench, found = Bench(), [seen(mark(1, 5_000)), *others]
    if expected_ms is not None:
        assert bench.stands_still_at(*found) == expected_ms
        return
    for _ in range(50):
        assert bench.look(*found).still_since_ms is None


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000, 5_000, -5_000])
@pytest.mark.parametrize("is_before", [True, False])
def test_jump_of_the_wall_clock_is_no_standstill(jump_ms: int, is_before: bool) -> None:
    """Whether the last operation came before or after it."""
    bench = Bench()
    bench.look(seen(mark(1, 5_900)))
    bench.jump_ms = jump_ms
    stamp_ms = 15_850 if is_before else 15_850 + jump_ms
    assert bench.look(seen(mark(2, stamp_ms))).due_ms == 25_900
    for number in range(3, 8):
        bench.look(seen(mark(number, bench.now.due_ms - 50 + jump_ms)))

        assert bench.now.still_since_ms is None
        assert bench.now.due_ms - bench.now.looked_ms >= 9_950


@pytest.mark.parametrize(
    ("later", "is_still"),
    [
        (seen(cpu_ms=100), True),
        (seen(cpu_ms=100 + 299), True),
        (seen(cpu_ms=100 + 300), False),
        (seen(cpu_ms=100, usage={7: Usage(100, 0), 8: Usage(300, 0)}), False),
        (seen(cpu_ms=100, written=1), False),
        (seen(cpu_ms=100, written=1, is_store=True), False),
        (seen(Mark(), cpu_ms=100, written=1, is_store=True), False),
        (seen(Mark(True), cpu_ms=100, written=1), False),
        (seen(Mark(True), cpu_ms=100, written=1, is_store=True), True),
        (seen(Mark(True), cpu_ms=100, is_store=True, wrote_ms=59_000), False),
        (seen(cpu_ms=100, wrote_ms=3_000), True),
        (seen(cpu_ms=100, is_stopped=True, is_mute=True), True),
    ],
)
def test_worker_without_collectives(later: Observation, is_still: bool) -> None:
    """It uses 5 % of a core, or writes: also its descendants. The store's answers are no output."""
    bench = Bench()
    while bench.now.due_ms < 60_000:
        bench.look(seen(later.mark, cpu_ms=100))
        assert bench.now.looked_ms % LIMITS.pause_ms == 0
    bench.look(later)

    # The first look has seen the 100 ms since the start, which are less than 5 %.
    assert bench.now.looked_ms == 60_000
    assert (bench.now.still_since_ms is not None) == is_still


def test_what_the_agent_makes_a_worker_do_is_no_progress() -> None:
    """The stacks that it writes for the evidence look like output, and cost some time."""
    bench = Bench()
    assert bench.stands_still_at(seen()) == 60_000
    wrote = seen(cpu_ms=500, written=9_000)

    assert bench.look(wrote, is_disturbed=True).still_since_ms == 0
    assert bench.look(wrote).still_since_ms == 0
    assert bench.look(seen(cpu_ms=500, written=9_001)).still_since_ms is None


def test_evidence_taken_all_the_time_makes_no_standstill() -> None:
    """What a worker does then is not known; a worker with collectives is judged by these."""
    bench = Bench()
    bench.look(seen(cpu_ms=6_000))
    for number in range(30):
        bench.look(seen(cpu_ms=6_000 * number), is_disturbed=True)
        assert bench.now.still_since_ms is None
    last_ms, idle = bench.now.looked_ms, seen(cpu_ms=6_000 * 29)
    assert bench.stands_still_at(idle) == last_ms + LIMITS.first_after_ms
    joined = Bench()
    joined.look(seen(mark(1, 5_000)))

    assert joined.look(seen(mark(1, 5_000)), is_disturbed=True).still_since_ms == 5_000


def test_worker_that_does_not_answer_gets_three_looks() -> None:
    """A busy machine may keep it from that; one that a signal has stopped cannot answer."""
    bench = Bench()
    bench.look(seen(mark(1, 5_000)))
    mute = seen(is_mute=True)
    looked = [bench.look(mute).still_since_ms for _ in range(3)]
    stopped = Bench()
    stopped.look(seen(mark(1, 5_000)))

    assert (looked, bench.now.looked_ms) == ([None, None, 5_000], 17_000)
    assert stopped.look(seen(is_mute=True, is_stopped=True)).still_since_ms == 5_000


def test_answer_ends_the_doubt() -> None:
    """The looks without an answer begin again after it."""
    bench = Bench()
    bench.look(seen(mark(1, 5_000)))
    for _ in range(2):
        bench.look(seen(is_mute=True))

    assert bench.look(seen(mark(2, 16_500))).due_ms == 26_500
    assert [bench.look(seen(is_mute=True)).still_since_ms for _ in range(3)] == [None, None, 16_500]


def test_recorder_that_cannot_be_read_any_more_leaves_what_the_kernel_says() -> None:
    """The program has closed the socket; the longer limit holds from then on."""
    bench = Bench()
    bench.look(seen(mark(1, 5_000)))
    bench.look(seen())
    for _ in range(20):
        bench.look(seen(cpu_ms=bench.now.due_ms))

        assert bench.now.still_since_ms is None
    last_ms = bench.now.looked_ms

    assert bench.stands_still_at(seen(cpu_ms=last_ms)) == last_ms + LIMITS.first_after_ms


def test_time_in_which_the_agent_stood_still_does_not_count() -> None:
    """Perhaps all processes of the machine did; what has happened since is not known yet."""
    bench = Bench()
    bench.look(seen(mark(1, 5_000)))
    bench.look(seen(mark(1, 5_000)), at_ms=115_000)

    assert (bench.now.still_since_ms, bench.now.due_ms) == (None, 124_000)
    late = Bench()
    late.look(seen(mark(1, 5_000)))
    late.look(seen(mark(1, 5_000)), at_ms=16_900)
    assert late.now.still_since_ms == 5_000


def test_no_limit_before_the_first_collective() -> None:
    """The first one is still found, and begins the other limit."""
    bench = Bench(Limits(10_000, 0))
    for _ in range(50):
        assert bench.look(seen()).still_since_ms is None
    begun_ms = bench.now.looked_ms

    assert begun_ms == 500_000
    assert bench.stands_still_at(seen(mark(1, begun_ms + 4_000))) == begun_ms + 14_000


def test_node_without_live_workers_does_not_stand_still() -> None:
    """They have ended; one that starts later has its time from then on."""
    bench = Bench()
    bench.look(seen(mark(1, 5_000)))
    for _ in range(10):
        assert bench.look().still_since_ms is None
    begun_ms = bench.now.looked_ms

    assert bench.stands_still_at(seen(worker_id=2)) == begun_ms + LIMITS.first_after_ms
