"""A coordinator without memory finds running rounds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.desired import DesiredRun, DesiredStandby, DesiredStop
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.node import HeldRound, NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import VerdictCause
from support.core.adoption import SPEC, WINDOW_MS, orphans
from support.core.coordinator import EPOCH, Bench
from support.core.decisions import RunOpened
from support.core.fake_agents import FakeAgent, stop_reason, stopped_round


def count_messages(agents: list[FakeAgent]) -> list[int]:
    return [len(agent.told) for agent in agents]


def test_complete_round_is_adopted() -> None:
    """A round that all of its members hold continues, and no agent gets a message."""
    bench, agents = orphans(restarts=1)
    desired = [agent.desired for agent in agents]
    for agent in agents:
        agent.hello(held=agent.held_round())
    assert (Phase.FORMING, WaitKind.REATTACH) == (bench.job().phase, bench.the_wait().kind)

    bench.advance(WINDOW_MS)

    job = bench.job()
    assert (Phase.RUNNING, 2, 1) == (job.phase, job.round_number, job.counts.restart_count)
    assert desired == [agent.desired for agent in agents]
    assert ["a", "b", "c"] == bench.order()
    assert "round_adopted" in bench.events()


def test_claimed_restarts_beyond_the_budget_break_nothing() -> None:
    """A claim above the limit of its specification counts as a spent budget."""
    bench, agents = orphans()
    for agent in agents:
        held = agent.held_round()
        agent.hello(held=replace(held, header=replace(held.header, restart_count=9)))

    bench.advance(WINDOW_MS)

    assert (Phase.RUNNING, 3) == (bench.job().phase, bench.job().counts.restart_count)


def test_nobody_is_told_anything_in_the_window() -> None:
    """Before the window ends, no agent has to stop the round that it holds."""
    bench, agents = orphans()
    before = count_messages(agents)
    for agent in agents:
        agent.hello(held=agent.held_round())

    bench.advance(WINDOW_MS - 1)

    assert before == count_messages(agents)
    assert Phase.FORMING is bench.job().phase


def test_nothing_is_sealed_in_the_window() -> None:
    """New nodes wait until the window has ended, even when there are enough of them."""
    bench = Bench(replace(SPEC, min_nodes=1, max_nodes=1), window_ms=WINDOW_MS)
    (a,) = bench.join("a")

    bench.advance(WINDOW_MS - 1)
    assert (DesiredStandby(spare=False), 1) == (a.desired, bench.the_wait().left_ms)

    bench.advance(1)
    assert 0 == a.group_rank


def test_input_between_the_end_of_the_window_and_the_adoption() -> None:
    """Where many jobs have to be adopted, something arrives in between: it seals no other round."""
    bench, agents = orphans()
    for agent in agents[:2]:
        agent.hello(held=agent.held_round())
    bench.join("d", "e", "f")
    bench.advance(WINDOW_MS - 1)
    bench.now_ms += 1
    bench.take(inputs.TimePassed())
    assert not bench.state.window_until_ms

    agents[2].hello(held=agents[2].held_round())
    bench.join("g")
    bench.advance(0)

    assert (Phase.RUNNING, 1) == (bench.job().phase, bench.job().round_number)
    assert ["a", "b", "c"] == bench.order()


def test_coordinator_without_a_window_adopts_nothing() -> None:
    """Without a window, the coordinator stops every round that an agent holds."""
    _, (a, *_) = orphans()
    bench = Bench(SPEC)

    bench.adopt_agent(a).hello(held=a.held_round())

    assert isinstance(a.desired, DesiredStop)


def test_incomplete_round_is_formed_anew() -> None:
    """When a member is missing, the round is stopped and re-formed without charging a restart."""
    bench, agents = orphans(restarts=1)
    a, _, c = agents
    for agent in (a, c):
        agent.hello(held=agent.held_round())

    bench.advance(WINDOW_MS)
    assert [RoundReason.NODE_LOST] * 2 == [stop_reason(a), stop_reason(c)]

    bench.obey()
    verdict = bench.job().verdict
    assert verdict is not None
    assert (VerdictCause.NODE_LOST, 1, 3) == (
        verdict.cause,
        bench.job().counts.restart_count,
        bench.job().round_number,
    )
    assert "node of group rank 1 was lost" in verdict.text
    assert [0, 1] == [a.group_rank, c.group_rank]


def test_hole_of_an_incomplete_round_is_filled() -> None:
    """A new node takes the missing slot, and the others keep theirs."""
    bench, (a, _, c) = orphans()
    for agent in (a, c):
        agent.hello(held=agent.held_round())
    (fresh,) = bench.join("zz")

    bench.advance(WINDOW_MS)
    bench.obey()

    assert [0, 1, 2] == [a.group_rank, fresh.group_rank, c.group_rank]


def test_late_member_is_fenced() -> None:
    """A member that comes after the window has to stop, and can join the next round."""
    bench, (a, b, c) = orphans()
    for agent in (a, b):
        agent.hello(held=agent.held_round())
    bench.advance(WINDOW_MS)
    bench.obey()

    c.hello(held=c.held_round())

    assert (1, 2) == (stopped_round(c), bench.job().round_number)
    bench.obey()
    assert DesiredStandby(spare=True) == c.desired


def test_late_member_of_a_later_round_breaks_nothing() -> None:
    """The next round's number is above that of a late agent's higher round."""
    _, (late, *_) = orphans(restarts=3)
    bench = Bench(SPEC)
    _, b, c = bench.run_round("x", "y", "z")
    assert (1, 4) == (bench.job().round_number, late.last_round)

    bench.adopt_agent(late).hello(held=late.held_round())
    bench.obey()
    assert (Phase.RUNNING, 1) == (bench.job().phase, bench.job().round_number)

    b.goodbye()
    bench.obey()
    assert (["x", "a", "z"], 5) == (bench.order(), bench.job().round_number)
    assert isinstance(c.desired, DesiredRun)


def change_port(held: HeldRound) -> HeldRound:
    return replace(held, header=replace(held.header, master_port=1))


def change_number(held: HeldRound) -> HeldRound:
    return replace(held, header=replace(held.header, number=held.header.number - 1))


def change_place(held: HeldRound) -> HeldRound:
    return replace(held, assignment=replace(held.assignment, group_rank=0, first_rank=0))


def change_ranks(held: HeldRound) -> HeldRound:
    return replace(held, assignment=replace(held.assignment, first_rank=0))


@pytest.mark.parametrize("change", [change_port, change_number, change_place, change_ranks])
def test_disagreeing_round_is_formed_anew(change: object) -> None:
    """A round on which its members do not agree is stopped everywhere and re-formed."""
    assert callable(change)
    bench, agents = orphans(restarts=1)
    *most, odd = agents
    for agent in most:
        agent.hello(held=agent.held_round())
    odd.hello(held=change(odd.held_round()))

    bench.advance(WINDOW_MS)
    assert all(isinstance(agent.desired, DesiredStop) for agent in agents)
    bench.obey(*most)
    bench.obey(odd)

    assert (1, 3) == (bench.job().counts.restart_count, bench.job().round_number)


def test_place_that_two_agents_hold_ends_the_round() -> None:
    """When all slots are taken and one of them twice, the round is over for all members."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(held=agent.held_round())
    twin = bench.agent("twin")
    twin.told, twin.last_round = agents[2].told, 1
    twin.hello(held=twin.held_round())

    bench.advance(WINDOW_MS)
    assert [1] * 4 == [stopped_round(agent) for agent in (*agents, twin)]
    bench.obey()

    assert (2, 0) == (bench.job().round_number, bench.job().counts.restart_count)


def test_round_that_was_being_stopped_goes_on_stopping() -> None:
    """A round with a clean member is over; the counts continue from where it began."""
    bench, agents = orphans(restarts=1)
    a, b, c = agents
    a.hello(ready_round=2)
    b.hello(held=b.held_round(NodeState.UNREADY))
    c.hello(held=c.held_round())

    bench.advance(WINDOW_MS)
    bench.obey()

    assert (["a", "b", "c"], 1, 3) == (
        sorted(bench.order()),
        bench.job().counts.restart_count,
        bench.job().round_number,
    )


def test_round_before_the_latest_is_not_adopted() -> None:
    """When a node was in a later round, the earlier one is stopped wherever it runs."""
    bench, agents = orphans(restarts=1)
    a, b, c = agents
    a.hello(ready_round=9)
    for agent in (b, c):
        agent.hello(held=agent.held_round())

    bench.advance(WINDOW_MS)
    assert isinstance(b.desired, DesiredStop)
    bench.obey()
    bench.advance(bench.spec.last_call_ms)

    assert ([10], [1]) == (
        [header.number for header in bench.rounds()],
        [header.restart_count for header in bench.rounds()],
    )


def test_later_run_outranks_an_earlier_one() -> None:
    """Of two held runs the later one continues, in any order of arrival."""
    bench, agents = orphans()
    bench.join("fresh")
    for agent in agents:
        held = agent.held_round()
        agent.run = 5
        agent.hello(held=replace(held, header=replace(held.header, run=5)))

    bench.advance(WINDOW_MS)

    assert (5, Phase.RUNNING, 1) == (bench.job().run, bench.job().phase, bench.job().round_number)
    assert RunOpened in {type(one) for one in bench.decisions}


def test_epoch_is_raised_above_the_reported() -> None:
    """The epoch rises above that of the coordinator that the agents come from."""
    bench, agents = orphans()
    agents[0].epoch = EPOCH + 500

    agents[0].hello(held=agents[0].held_round())

    assert EPOCH + 501 == bench.state.epoch


def test_rounds_go_on_above_the_adopted() -> None:
    """The round after an adopted one has a higher number and continues its counts."""
    bench, agents = orphans(restarts=2)
    for agent in agents:
        agent.hello(held=agent.held_round())
    bench.advance(WINDOW_MS)

    agents[1].fail()
    bench.obey()

    assert (4, 3) == (bench.job().round_number, bench.job().counts.restart_count)
    assert [3, 4] == [header.number for header in bench.rounds()]


def test_budget_of_an_adopted_run_is_not_renewed() -> None:
    """Restarts that the former coordinator charged count."""
    bench, agents = orphans(restarts=3)
    for agent in agents:
        agent.hello(held=agent.held_round())
    bench.advance(WINDOW_MS)

    agents[1].fail()
    bench.obey()

    assert Outcome.FAILED is bench.job().outcome


def test_jobs_are_adopted_one_by_one() -> None:
    """One job's incomplete round does not prevent the adoption of another job's round."""
    before = Bench(JobSpec(min_nodes=2, max_nodes=2))
    whole = before.run_round("a", "b", job_id="whole")
    torn = before.run_round("a", "b", job_id="torn")
    bench = Bench(before.spec, window_ms=WINDOW_MS)
    for agent in (*whole, torn[0]):
        bench.adopt_agent(agent).hello(held=agent.held_round())

    bench.advance(WINDOW_MS)

    assert (Phase.RUNNING, Phase.STOPPING) == (bench.job("whole").phase, bench.job("torn").phase)


def test_member_that_succeeded_and_drains() -> None:
    """An adopted round does not wait for the drain of a member that has succeeded."""
    bench, agents = orphans()
    a, b, c = agents
    for agent in (a, b):
        agent.hello(held=agent.held_round())
    c.hello(held=c.held_round(NodeState.SUCCEEDED), draining=(10_000, "SIGTERM"))

    bench.advance(20_000)

    assert (Phase.RUNNING, None) == (bench.job().phase, bench.wait())
