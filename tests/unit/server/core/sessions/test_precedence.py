"""In the window, agents of a run that an earlier coordinator knew outrank newcomers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages.effects import Refuse
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.phase import Phase
from support.core.adoption import SPEC, WINDOW_MS, orphans
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent

OTHER = replace(SPEC, max_restarts=9)


def return_all(agents: Sequence[FakeAgent]) -> None:
    """Let the members of the round that runs find the coordinator."""
    for agent in agents:
        assert agent.hello(held=agent.held_round()).refusal is None


def refusals(bench: Bench, agent: FakeAgent) -> list[RefusalKind]:
    """Return why an agent was refused, so far."""
    return [
        effect.refusal.kind
        for effect in bench.effects
        if isinstance(effect, Refuse) and effect.session == agent.session
    ]


def assert_adopted(bench: Bench, agents: Sequence[FakeAgent], displaced: FakeAgent) -> None:
    """Check that the round continues on all its members, without the newcomer."""
    bench.advance(WINDOW_MS)
    job = bench.job()
    assert (Phase.RUNNING, SPEC) == (job.phase, job.spec)
    assert ["a", "b", "c"] == bench.order()
    assert displaced.node is None
    assert [job.round_number] * 3 == [agent.last_round for agent in agents]


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"spec": OTHER}, RefusalKind.SPEC_MISMATCH),
        ({"name": "b"}, RefusalKind.NODE_NAME_IN_USE),
        ({"address": "127.0.0.1"}, RefusalKind.ADDRESS_MISMATCH),
    ],
)
def test_newcomer_gives_way_to_members(facts: dict[str, object], kind: RefusalKind) -> None:
    """A newcomer that came first is refused with the reason that it would have had as the last."""
    bench, agents = orphans(restarts=1)
    (newcomer,) = bench.join(str(facts.pop("name", "zz")), **facts)

    return_all(agents)

    assert [kind] == refusals(bench, newcomer)
    assert_adopted(bench, agents, newcomer)


def test_newcomer_with_the_node_rank_of_a_member_gives_way() -> None:
    """A node rank belongs to the member that holds a round with it."""
    before = Bench(SPEC, coordinator_id="before")
    agents = [before.agent(name, node_rank=rank) for rank, name in enumerate("abc")]
    for agent in agents:
        agent.hello()
    before.obey()
    bench = Bench(SPEC, window_ms=WINDOW_MS)
    (newcomer,) = bench.join("zz", node_rank=1)

    return_all([bench.adopt_agent(agent) for agent in agents])

    assert [RefusalKind.NODE_RANK_IN_USE] == refusals(bench, newcomer)
    assert newcomer.node is None


def test_newcomer_whose_name_nobody_chose_gets_another() -> None:
    """A name that was made up gives way to the same name of a member; the newcomer stays."""
    bench, agents = orphans()
    (newcomer,) = bench.join("b", explicit=False)

    return_all(agents)

    assert [] == refusals(bench, newcomer)
    assert "b-2" == newcomer.known_node.name
    bench.advance(WINDOW_MS)
    assert ["a", "b", "c"] == bench.order()


def test_newcomer_that_fits_stays() -> None:
    """A newcomer that contradicts no member becomes a spare."""
    bench, agents = orphans()
    (newcomer,) = bench.join("zz")

    return_all(agents)
    bench.advance(WINDOW_MS)

    assert [] == refusals(bench, newcomer)
    assert ["a", "b", "c"] == bench.order()
    assert newcomer.node is not None


def test_member_that_contradicts_a_member_is_refused() -> None:
    """Between agents that hold rounds the first counts: a claim displaces no claim."""
    bench, agents = orphans()
    return_all(agents[:1])
    stranger = bench.agent("zz", spec=OTHER)
    held = agents[1].held_round()

    assert stranger.hello(held=held).refusal is not None
    assert [RefusalKind.SPEC_MISMATCH] == refusals(bench, stranger)
    assert [] == refusals(bench, agents[0])


def test_claim_counts_only_in_the_window() -> None:
    """After the window, an agent that holds an unknown round has to fit the job like any other."""
    bench, agents = orphans()
    bench.join("x", "y", spec=OTHER)
    bench.advance(WINDOW_MS)

    assert agents[0].hello(held=agents[0].held_round()).refusal is not None
    assert [RefusalKind.SPEC_MISMATCH] == refusals(bench, agents[0])


def test_run_that_newcomers_opened_is_replaced() -> None:
    """The members' run continues with its own spec and number, also over the journal."""
    bench, agents = orphans(restarts=2)
    bench.join("x", "y", spec=OTHER)

    return_all(agents)
    bench.advance(WINDOW_MS)
    agents[0].fail()
    bench.obey()

    job = bench.job()
    assert (1, SPEC, 3) == (job.run, job.spec, job.counts.restart_count)
    assert ["a", "b", "c"] == bench.order()
    bench.check_journal()


def test_run_that_a_newcomer_left_is_continued() -> None:
    """A newcomer that comes and leaves in the window ends nothing for the members."""
    bench, agents = orphans()
    (newcomer,) = bench.join("zz")
    newcomer.goodbye()

    return_all(agents)

    assert_adopted(bench, agents, newcomer)


def test_members_without_a_round_outrank_newcomers() -> None:
    """Between two rounds its members hold none, and the run is still theirs."""
    bench, agents = orphans()
    (newcomer,) = bench.join("zz", spec=OTHER)

    for agent in agents:
        agent.clean = agent.last_round
        assert agent.hello().refusal is None
    bench.advance(WINDOW_MS + SPEC.last_call_ms)
    bench.obey()

    assert [RefusalKind.SPEC_MISMATCH] == refusals(bench, newcomer)
    assert (Phase.RUNNING, SPEC) == (bench.job().phase, bench.job().spec)


def test_newcomers_do_not_displace_each_other() -> None:
    """Of two newcomers the first counts."""
    bench = Bench(SPEC, window_ms=WINDOW_MS)
    (first,) = bench.join("a")
    second = bench.agent("b", spec=OTHER)

    assert second.hello().refusal is not None
    assert first.node is not None
