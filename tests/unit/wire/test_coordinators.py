"""Which coordinator is tried next."""

from __future__ import annotations

from rallypoint.wire.coordinators import HOPS_MAX, Coordinators

A, B, C, OWNER = "a:1", "b:1", "c:1", "owner:1"


def test_single_coordinator_is_tried_again_after_a_pause() -> None:
    """As if there were no list."""
    one = Coordinators([A])

    assert [(one.failed(), one.target) for _ in range(3)] == [(False, A)] * 3


def test_all_are_tried_in_turn_before_a_pause() -> None:
    """The next round of attempts begins where this one did."""
    three = Coordinators([A, B, C])

    tried = [(three.target, three.failed()) for _ in range(6)]
    assert tried == [(A, True), (B, True), (C, False)] * 2


def test_next_attempt_is_with_the_one_that_answered_last() -> None:
    """A broken stream says nothing against its coordinator."""
    three = Coordinators([A, B, C])
    three.failed()
    three.welcomed()

    assert three.target == B
    assert [three.failed() for _ in range(3)] == [True, True, False]
    assert three.target == B


def test_owner_is_tried_at_once() -> None:
    """Whether it is one of the list or not."""
    two = Coordinators([A, B])

    assert (two.redirected(OWNER), two.target) == (True, OWNER)
    assert (two.redirected(B), two.target) == (True, B)


def test_owner_that_cannot_be_reached_leads_back() -> None:
    """To the one that has named it, which may know more by now."""
    two = Coordinators([A, B])
    two.failed()
    two.redirected(OWNER)

    assert (two.failed(), two.target) == (True, B)


def test_coordinators_that_send_the_agent_in_circles_cost_no_load() -> None:
    """After a few moves in a row it pauses, and tries another one."""
    two = Coordinators([A, B])

    moves = [two.redirected(OWNER) for _ in range(HOPS_MAX + 1)]
    assert moves == [True] * HOPS_MAX + [False]
    assert two.target == A


def test_dead_owner_that_all_name_is_not_tried_without_end() -> None:
    """Until the coordinators learn of its death, the agent pauses now and then."""
    two = Coordinators([A, B])

    attempts = 0
    while two.redirected(OWNER) and two.failed():
        attempts += 1
    assert attempts == HOPS_MAX


def test_welcome_allows_new_moves() -> None:
    """Only moves in a row count."""
    two = Coordinators([A, B])
    for _ in range(HOPS_MAX):
        two.redirected(OWNER)
    two.welcomed()

    assert two.redirected(B)


def test_address_that_is_none_is_not_tried() -> None:
    """The agent pauses, and asks another coordinator."""
    two = Coordinators([A, B])

    assert (two.redirected("not an address"), two.target) == (False, B)


def test_order_begins_with_the_one_to_try() -> None:
    """An owner that was not known before comes first; it leaves when it does not serve."""
    three = Coordinators([A, B, A, C])
    orders = []
    for note in (three.failed, lambda: three.redirected(OWNER), three.failed):
        note()
        orders.append(three.order)

    assert orders == [(B, C, A), (OWNER, B, C, A), (B, C, A)]
