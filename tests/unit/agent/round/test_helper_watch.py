"""The watch over the helper: silence that counts, and the fence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.helper.events import HostEvent
from rallypoint.agent.round.helper_watch import (
    FENCE_MARGIN_MS,
    FROZEN_S_MAX,
    NOTICED_S,
    SILENT_S_MAX,
    TICK_S,
    HelperWatch,
)
from rallypoint.server.core.model.spec import Timing


class Host:
    """Stands in for the helper: answers at once, unless it is frozen."""

    pid = 7
    takes_requests = True
    is_replaceable = True

    def __init__(self) -> None:
        self.is_frozen = False
        self.is_silent = False
        self.fenced_ms: int | None = None
        self.killed_s: float | None = None

    def attach(self, on_event: Callable[[HostEvent], None]) -> None:
        """It reports nothing."""

    def ping(self) -> None:
        self.is_silent = self.is_frozen

    def arm_fence(self, at_ms: int) -> None:
        """It confirms nothing by itself."""

    def kill(self) -> None:
        self.killed_s = asyncio.get_running_loop().time()
        self.takes_requests = False


class Clock:
    """Stands in for the loop of the watch: the test lets time pass."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, due_s: float, call: Callable[..., None], *args: object) -> Timer:
        timer = Timer(due_s, call, args)
        self._timers.append(timer)
        return timer

    def pass_(self, seconds: float) -> None:
        """Let time pass; each timer is called when it is due."""
        end_s = self.now_s + seconds
        while due := [one for one in self._timers if one.call and one.due_s <= end_s]:
            timer = min(due, key=lambda one: one.due_s)
            self.now_s = max(self.now_s, timer.due_s)
            timer.fire()
        self.now_s = end_s

    def stand_still(self, seconds: float) -> None:
        """Let time pass without a turn of the loop."""
        self.now_s += seconds


class Timer:
    def __init__(self, due_s: float, call: Callable[..., None], args: tuple[object, ...]) -> None:
        self.due_s = due_s
        self.call: Callable[..., None] | None = call
        self._args = args

    def fire(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call(*self._args)

    def cancel(self) -> None:
        self.call = None


class Bench:
    """A watch that has begun, with its helper."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.host = Host()
        self.posted: list[inputs.Input] = []
        self.watch = HelperWatch(cast(Any, self.host), self.posted.append)
        self.watch.is_used = True

    def killed_after(self, seconds: float) -> bool:
        self.clock.pass_(seconds)
        return self.host.killed_s is not None


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: bench.clock)
    bench.watch.begin(lambda event: None)
    yield bench


def test_helper_that_answers_is_left_alone(bench: Bench) -> None:
    """However long it takes, and whatever is asked of it."""
    bench.watch.is_sweeping = True

    assert not bench.killed_after(10 * FROZEN_S_MAX)
    assert bench.posted == []


def test_silence_is_told_and_ends_with_an_answer(bench: Bench) -> None:
    """The core learns both, once."""
    bench.host.is_frozen = True
    bench.clock.pass_(NOTICED_S + 2 * TICK_S)
    bench.host.is_frozen = bench.host.is_silent = False
    bench.clock.pass_(2 * TICK_S)

    assert bench.posted == [inputs.HelperSilent(7), inputs.HelperAnswered()]
    assert not bench.killed_after(10 * FROZEN_S_MAX)


@pytest.mark.parametrize(
    ("is_sweeping", "is_used", "is_replaceable", "limit_s"),
    [
        (True, True, True, SILENT_S_MAX),
        (False, False, True, SILENT_S_MAX),
        (True, True, False, FROZEN_S_MAX),
        (False, False, False, FROZEN_S_MAX),
        (False, True, True, FROZEN_S_MAX),
    ],
)
def test_silent_helper_is_killed(
    bench: Bench, is_sweeping: bool, is_used: bool, is_replaceable: bool, limit_s: int
) -> None:
    """Soon when it has no workers, or they have to end; late when that costs them, or the agent."""
    bench.watch.is_sweeping, bench.watch.is_used = is_sweeping, is_used
    bench.host.is_replaceable = is_replaceable
    bench.host.is_frozen = True

    assert not bench.killed_after(limit_s + TICK_S / 2)
    assert bench.killed_after(TICK_S)


def test_node_is_clean_in_time_for_the_next_round(bench: Bench) -> None:
    """A coordinator waits five seconds beyond the shutdown timeout, which may be 0."""
    bench.watch.is_sweeping = bench.host.is_frozen = True

    assert bench.killed_after(Timing().stop_slack_ms / 1_000 - TICK_S)


def test_time_in_which_the_agent_stands_still_counts_for_nothing(bench: Bench) -> None:
    """What stops agent and helper together does not end the helper."""
    bench.watch.is_sweeping = True
    bench.host.is_frozen = True
    for _ in range(3 * SILENT_S_MAX):
        bench.clock.stand_still(10 * TICK_S)
        bench.clock.pass_(0)

    assert not bench.killed_after(SILENT_S_MAX - TICK_S)


def test_fence_is_carried_out_without_the_helper(bench: Bench) -> None:
    """The helper dies a moment after the fence, within the second that the coordinator waits."""
    at_ms = round(bench.clock.now_s * 1_000) + 500
    bench.watch.arm_fence(at_ms)

    assert not bench.killed_after(0.5)
    assert bench.killed_after(FENCE_MARGIN_MS / 1_000)
    assert FENCE_MARGIN_MS < 1_000


@pytest.mark.parametrize("why", ["confirmed", "moved", "unused"])
def test_fence_spares_a_helper(bench: Bench, why: str) -> None:
    """One that has carried it out, whose fence was moved, or below which nothing runs."""
    at_ms = round(bench.clock.now_s * 1_000) + 500
    bench.watch.arm_fence(at_ms)
    match why:
        case "confirmed":
            bench.host.fenced_ms = at_ms
        case "moved":
            bench.watch.arm_fence(at_ms + 60_000)
        case _:
            bench.watch.is_used = False

    assert not bench.killed_after(5)


def test_helper_that_stood_still_with_its_agent_has_time_for_the_fence(bench: Bench) -> None:
    """After both were suspended, the helper may be the second to wake."""
    at_ms = round(bench.clock.now_s * 1_000) + 500
    bench.watch.arm_fence(at_ms)
    bench.clock.stand_still(20)
    bench.clock.pass_(0)

    assert bench.host.killed_s is None
    bench.host.fenced_ms = at_ms
    assert not bench.killed_after(5)


def test_closed_watch_does_nothing(bench: Bench) -> None:
    """The helper ends with its agent then."""
    bench.host.is_frozen = True
    bench.watch.arm_fence(round(bench.clock.now_s * 1_000))
    bench.watch.close()

    assert not bench.killed_after(10 * FROZEN_S_MAX)
