"""When standbys are made, weighed and ended: tables of inputs and effects."""

from __future__ import annotations

import pytest

from rallypoint.agent.warm import policy
from rallypoint.agent.warm.phase import Phase
from rallypoint.agent.warm.policy import (
    FAILURES_MAX,
    NEEDS,
    WEIGH_EVERY_MS,
    Effect,
    End,
    Failed,
    Importable,
    Input,
    LogGivenUp,
    LogLimited,
    LogReady,
    Look,
    Lost,
    Made,
    Make,
    Phased,
    Refused,
    State,
    Swapped,
    TimePassed,
    Weigh,
    Weighed,
    next_deadline_ms,
)

LIMIT = 1_000
CALM_MS = NEEDS[Phase.RUNNING]
WAIT_MS = NEEDS[Phase.WAITING]
Line = tuple[int, Input, list[Effect]]
"""Time, input, and the effects that follow."""


def play(*lines: Line, workers: int = 2, can_import: bool = True) -> State:
    """Check the effects of inputs, from the first second of a node on."""
    state = policy.begin(workers, LIMIT, 0, can_import=can_import)
    for now_ms, input, expected in lines:
        state, effects = policy.step(state, input, now_ms)

        assert list(effects) == expected, (now_ms, input)
    return state


BEGIN: Line = (0, TimePassed(), [Look()])
BASE: Line = (0, Swapped(5), [])
WAITED: tuple[Line, ...] = (BEGIN, BASE, (WAIT_MS, TimePassed(), [Look()]))
ONE: tuple[Line, ...] = (*WAITED, (WAIT_MS, Swapped(5), [Make(0)]))
TWO: tuple[Line, ...] = (
    *ONE,
    (2_000, Made(0), [Weigh(), Look()]),
    (2_000, Swapped(5), [Make(1)]),
    (2_001, Weighed(((0, 10),)), []),
    (3_000, Made(1), [Weigh()]),
    (3_001, Weighed(((0, 10), (1, 20))), [LogReady(2, 30)]),
)


def test_waiting_node_makes_them_one_after_another() -> None:
    """After a second; the log line comes when the last one is ready."""
    state = play(*TWO)

    assert next_deadline_ms(state) == 3_001 + WEIGH_EVERY_MS


def test_nothing_is_made_before_the_phase_has_lasted() -> None:
    """A job that forms at once costs nothing."""
    state = play(BEGIN, BASE, (WAIT_MS - 1, TimePassed(), []))

    assert next_deadline_ms(state) == WAIT_MS


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DISTURBED, Phase.STOPPING])
def test_nothing_is_made_in_a_phase_that_needs_the_machine(phase: Phase) -> None:
    """Whatever time passes; a running round makes them after the calm."""
    state = play(BEGIN, BASE, (1, Phased(phase), []), (10**6, TimePassed(), []))

    assert next_deadline_ms(state) is None


def test_calm_round_makes_them() -> None:
    """Ten seconds after the start."""
    play(
        BEGIN,
        BASE,
        (1, Phased(Phase.STARTING), []),
        (2, Phased(Phase.RUNNING), [Look()]),
        (2, Swapped(5), []),
        (1 + CALM_MS, TimePassed(), []),
        (2 + CALM_MS, TimePassed(), [Look()]),
        (2 + CALM_MS, Swapped(5), [Make(0)]),
    )


def test_phase_that_changes_takes_back_a_look() -> None:
    """The answer to a look of an earlier phase makes nothing."""
    play(*WAITED, (WAIT_MS, Phased(Phase.STARTING), []), (WAIT_MS, Swapped(5), []))


def test_swapping_machine_waits_for_another_calm() -> None:
    """Pages that were swapped out between two looks begin the calm again; fewer do not."""
    play(
        *WAITED,
        (WAIT_MS, Swapped(6), []),
        (2 * WAIT_MS - 1, TimePassed(), []),
        (2 * WAIT_MS, TimePassed(), [Look()]),
        (2 * WAIT_MS, Swapped(6), [Make(0)]),
    )


def test_start_takes_all_and_the_calm_round_makes_others() -> None:
    """Those that the start did not use are gone, too."""
    play(
        *TWO,
        (4_000, Phased(Phase.STARTING), []),
        (4_001, Phased(Phase.RUNNING), [Look()]),
        (4_001, Swapped(5), []),
        (4_001 + CALM_MS, TimePassed(), [Look()]),
        (4_001 + CALM_MS, Swapped(5), [Make(0)]),
    )


def test_memory_limit_ends_the_last_ones_for_good() -> None:
    """A weight at the limit ends none; above it, those at the end, until the rest fits."""
    state = play(
        *TWO,
        (4_000, Weighed(((0, 500), (1, 500))), []),
        (5_000, Weighed(((0, 500), (1, 501))), [LogLimited(1_001, 1), End(1)]),
        (9_000, TimePassed(), []),
    )

    assert state.most == 1


def test_standby_that_is_ready_after_the_limit_was_reached_is_ended() -> None:
    """Without another log line."""
    play(
        *ONE,
        (2_000, Made(0), [Weigh(), Look()]),
        (2_000, Swapped(5), [Make(1)]),
        (2_001, Weighed(((0, 1_001),)), [LogLimited(1_001, 0), End(0)]),
        (3_000, Made(1), [End(1)]),
        (9_000, TimePassed(), []),
    )


def test_weight_of_one_that_has_ended_does_not_count() -> None:
    """It was read before."""
    play(*TWO, (4_000, Lost(1), []), (4_001, Weighed(((0, 600), (1, 600))), []))


def test_standbys_are_weighed_every_minute() -> None:
    """As long as there are any."""
    due_ms = 3_001 + WEIGH_EVERY_MS
    state = play(*TWO, (due_ms - 1, TimePassed(), []), (due_ms, TimePassed(), [Weigh()]))
    state, _ = policy.step(state, Phased(Phase.STARTING), due_ms)

    assert next_deadline_ms(state) is None


def test_failures_in_a_row_end_the_tries() -> None:
    """Each try waits for another calm; a success in between begins the count again."""
    lines, now_ms = list(ONE), WAIT_MS
    for failure in range(1, FAILURES_MAX + 1):
        is_last = failure == FAILURES_MAX
        lines.append((now_ms, Failed(0), [LogGivenUp(0)] if is_last else []))
        now_ms += WAIT_MS
        rank = 1 if is_last else 0
        lines.append((now_ms, TimePassed(), [Look()]))
        lines.append((now_ms, Swapped(5), [Make(rank)]))
    play(*lines)
    once = play(*ONE, (now_ms, Failed(0), []))

    assert once.seats[0].failures == 1
    assert play(*TWO).seats[0].failures == 0


def test_lost_standby_is_made_again_after_another_calm() -> None:
    """It is no failure: its files may have changed."""
    play(
        *TWO,
        (9_000, Lost(0), []),
        (9_000 + WAIT_MS, TimePassed(), [Look()]),
        (9_000 + WAIT_MS, Swapped(5), [Make(0)]),
    )


def test_nothing_is_made_before_it_is_known_what_to_import() -> None:
    """With --warm auto, a worker has to record that first."""
    play((0, TimePassed(), []), (5_000, Importable(), [Look()]), can_import=False)


def test_refusal_ends_all_tries() -> None:
    """The interpreter cannot be a standby."""
    state = play(*ONE, (2_000, Refused(), []), (2_000, Failed(0), []), (10**6, TimePassed(), []))

    assert next_deadline_ms(state) is None
