"""Nodes of one role run one program; other arguments are accepted with a warning."""

from __future__ import annotations

import pytest

from rallypoint.server.core.messages.effects import JobChanged, Refuse, Welcome
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.node import Program
from rallypoint.server.core.model.spec import JobSpec
from support.core.adoption import SPEC, WINDOW_MS, orphans
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent

TRIO = JobSpec(min_nodes=3, max_nodes=3)
ALICE, BOB = Program("alice.py", "a1"), Program("bob.py", "b1")
BOB_MAY = Program("bob.py", "b1", may_differ=True)
NAMELESS = Program("", "c1")


def warnings(bench: Bench) -> list[dict[str, str | int]]:
    """Return the facts of every warning about arguments, so far."""
    return [
        dict(effect.facts)
        for effect in bench.effects
        if isinstance(effect, JobChanged) and effect.reason == "other_arguments_found"
    ]


def differs_from(agent: FakeAgent) -> str | None:
    """Return the node that the agent's last Welcome warns about."""
    welcomes = [
        effect
        for effect in agent.bench.effects
        if isinstance(effect, Welcome) and effect.session == agent.session
    ]
    return welcomes[-1].arguments_differ_from


def test_other_program_is_refused_with_both_programs_and_nodes() -> None:
    """The refusal names both nodes and what each of them runs."""
    bench = Bench(TRIO)
    bench.join("a", program=ALICE)
    other = bench.agent("b", program=BOB)

    refusal = other.hello().refusal

    assert refusal is not None
    assert RefusalKind.PROGRAM_MISMATCH is refusal.kind
    assert (
        ("job_id", "job"),
        ("node_name", "b"),
        ("program", "bob.py"),
        ("other_node_name", "a"),
        ("other_program", "alice.py"),
    ) == refusal.facts


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"program": ALICE}, {"program": ALICE}),
        ({"program": ALICE}, {"program": Program("alice.py", "a2")}),
        ({"program": ALICE, "role": "actor"}, {"program": BOB, "role": "learner"}),
        ({"program": ALICE}, {"program": BOB_MAY}),
        ({"program": BOB_MAY}, {"program": ALICE}),
        ({"program": ALICE}, {"program": NAMELESS}),
        ({"program": NAMELESS}, {"program": ALICE}),
        ({"program": ALICE}, {}),
        ({}, {"program": ALICE}),
    ],
    ids=[
        "the same",
        "other arguments",
        "other role",
        "the newcomer may differ",
        "the first may differ",
        "the newcomer's has no name",
        "the first one's has no name",
        "the newcomer does not say",
        "the first does not say",
    ],
)
def test_program_that_fits_is_accepted(first: dict[str, object], second: dict[str, object]) -> None:
    """Only a program with another name, in the same role, without the flag, does not fit."""
    bench = Bench(TRIO)
    bench.join("a", **first)

    assert bench.agent("b", **second).hello().refusal is None


@pytest.mark.parametrize("between", [BOB_MAY, NAMELESS, None])
def test_exception_covers_one_node_only(between: Program | None) -> None:
    """A node that is compared with nothing does not hide the node before it from the next one."""
    bench = Bench(TRIO)
    bench.join("a", program=between)
    bench.join("b", program=ALICE)

    refusal = bench.agent("c", program=BOB).hello().refusal

    assert refusal is not None
    assert RefusalKind.PROGRAM_MISMATCH is refusal.kind


def test_program_of_a_node_that_has_left_does_not_count() -> None:
    """A corrected script with another name may follow: only nodes of the job are compared."""
    bench = Bench(TRIO)
    (a,) = bench.join("a", program=ALICE)
    a.goodbye()

    assert bench.agent("b", program=BOB).hello().refusal is None


def test_other_arguments_cause_a_warning() -> None:
    """The coordinator's log and the newcomer learn which earlier node has other arguments."""
    bench = Bench(TRIO)
    a, b = bench.join("a", "b", program=ALICE)
    (c,) = bench.join("c", program=Program("alice.py", "a2"))

    assert [{"node": "c", "other_node": "a"}] == warnings(bench)
    assert [None, None, "a"] == [differs_from(agent) for agent in (a, b, c)]


def test_warning_is_repeated_to_the_newcomer_only() -> None:
    """A resumed session gets its warning again: the first may be lost. The first node gets none."""
    bench = Bench(TRIO)
    (a,) = bench.join("a", program=ALICE)
    (b,) = bench.join("b", program=Program("alice.py", "a2"))
    for agent in (a, b):
        agent.break_off()
        agent.hello()

    assert [None, "a"] == [differs_from(agent) for agent in (a, b)]
    assert 1 == len(warnings(bench))


@pytest.mark.parametrize(
    "second",
    [
        {"program": ALICE},
        {"program": BOB_MAY},
        {"program": Program("bob.py", "b1"), "role": "other"},
        {"program": NAMELESS},
        {},
    ],
)
def test_arguments_of_other_programs_are_not_compared(second: dict[str, object]) -> None:
    """Equal arguments, and those of another program or role, cause no warning."""
    bench = Bench(TRIO)
    bench.join("a", program=ALICE)
    (b,) = bench.join("b", **second)

    assert [] == warnings(bench)
    assert differs_from(b) is None


@pytest.mark.parametrize(
    ("newcomer_program", "expected"),
    [(BOB, [RefusalKind.PROGRAM_MISMATCH]), (BOB_MAY, []), (NAMELESS, []), (ALICE, [])],
)
def test_newcomer_with_another_program_gives_way_to_members(
    newcomer_program: Program, expected: list[RefusalKind]
) -> None:
    """After a restart of the coordinator, members that come later outrank a newcomer."""
    before = Bench(SPEC, coordinator_id="before")
    agents = before.run_round("a", "b", "c", program=ALICE)
    bench = Bench(SPEC, window_ms=WINDOW_MS)
    (newcomer,) = bench.join("zz", program=newcomer_program)

    for agent in agents:
        bench.adopt_agent(agent)
        assert agent.hello(held=agent.held_round()).refusal is None
    bench.advance(WINDOW_MS)

    refused = [
        effect.refusal.kind
        for effect in bench.effects
        if isinstance(effect, Refuse) and effect.session == newcomer.session
    ]
    assert expected == refused
    assert ["a", "b", "c"] == bench.order()


def test_newcomer_with_another_program_waits_for_no_member() -> None:
    """Members that say nothing about their program displace no newcomer."""
    bench, agents = orphans()
    (newcomer,) = bench.join("zz", program=BOB)

    for agent in agents:
        assert agent.hello(held=agent.held_round()).refusal is None

    assert newcomer.node is not None


def test_replacement_of_a_broken_node_may_run_another_program() -> None:
    """A corrected and renamed script may follow at once under the same name, not beside it."""
    bench = Bench(TRIO)
    (first,) = bench.join("a", program=ALICE)
    first.break_off()

    assert bench.agent("b", program=BOB).hello().refusal is not None
    assert bench.agent("a", program=BOB).hello().refusal is None
