"""A coordinator that remembers nothing finds rounds running."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rallypoint.server.core import inputs
from rallypoint.server.core.effects import DesiredRun, DesiredStandby, DesiredStop, RunOpened
from rallypoint.server.core.model import (
    Activity,
    JobSpec,
    Outcome,
    Phase,
    RoundReason,
    VerdictCause,
    WaitKind,
)
from rallypoint.server.core.node import Claim
from support.coordinator import EPOCH, Bench
from support.fake_agents import FakeAgent, finished, stop_reason, stopped_round, worker_exit

WINDOW_MS = 2_500
SPEC = JobSpec(min_nodes=2, max_nodes=3, max_restarts=3, grow=False, restart_backoff_ms=0)


def orphans(restarts: int = 0) -> tuple[Bench, list[FakeAgent]]:
    """Return a new coordinator in its window, and three agents whose round it does not know."""
    before = Bench(SPEC, coordinator_id="before")
    agents = list(before.run_round("a", "b", "c"))
    for number in range(restarts):
        agents[number % 3].fail()  # not one of them so often that it would be set aside
        before.obey()
    bench = Bench(SPEC, window_ms=WINDOW_MS)
    for agent in agents:
        bench.adopt_agent(agent)
    return bench, agents


def told(agents: list[FakeAgent]) -> list[int]:
    return [len(agent.told) for agent in agents]


def test_complete_round_is_adopted() -> None:
    """A round that all of its members claim goes on, and nobody is told anything else."""
    bench, agents = orphans(restarts=1)
    desired = [agent.desired for agent in agents]
    for agent in agents:
        agent.hello(claim=agent.claim())
    assert (Phase.FORMING, WaitKind.REATTACH) == (bench.job().phase, bench.the_wait().kind)

    bench.advance(WINDOW_MS)

    job = bench.job()
    assert (Phase.RUNNING, 2, 1) == (job.phase, job.round_number, job.restart_count)
    assert desired == [agent.desired for agent in agents]
    assert ["a", "b", "c"] == bench.order()
    assert "round_adopted" in bench.events()


def test_nobody_is_told_anything_in_the_window() -> None:
    """Before the window ends, an agent that holds a round is not told to stop it."""
    bench, agents = orphans()
    before = told(agents)
    for agent in agents:
        agent.hello(claim=agent.claim())

    bench.advance(WINDOW_MS - 1)

    assert before == told(agents)
    assert Phase.FORMING is bench.job().phase


def test_nothing_is_sealed_in_the_window() -> None:
    """Fresh nodes that would suffice wait until the window has ended."""
    bench = Bench(replace(SPEC, min_nodes=1, max_nodes=1), window_ms=WINDOW_MS)
    (a,) = bench.join("a")

    bench.advance(WINDOW_MS - 1)
    assert (DesiredStandby(spare=False), 1) == (a.desired, bench.the_wait().left_ms)

    bench.advance(1)
    assert 0 == a.group_rank


def test_coordinator_without_a_window_adopts_nothing() -> None:
    """A coordinator that listens for nobody has an agent stop what it holds."""
    _, (a, *_) = orphans()
    bench = Bench(SPEC)

    bench.adopt_agent(a).hello(claim=a.claim())

    assert isinstance(a.desired, DesiredStop)


def test_incomplete_round_is_formed_anew() -> None:
    """When a member is missing the round is stopped and formed anew; nothing is charged."""
    bench, agents = orphans(restarts=1)
    a, _, c = agents
    for agent in (a, c):
        agent.hello(claim=agent.claim())

    bench.advance(WINDOW_MS)
    assert [RoundReason.NODE_LOST] * 2 == [stop_reason(a), stop_reason(c)]

    bench.obey()
    verdict = bench.job().verdict
    assert verdict is not None
    assert (VerdictCause.NODE_LOST, 1, 3) == (
        verdict.cause,
        bench.job().restart_count,
        bench.job().round_number,
    )
    assert "node of group rank 1 was lost" in verdict.text
    assert [0, 1] == [a.group_rank, c.group_rank]


def test_hole_of_an_incomplete_round_is_filled() -> None:
    """A fresh node takes the missing place, and the others keep theirs."""
    bench, (a, _, c) = orphans()
    for agent in (a, c):
        agent.hello(claim=agent.claim())
    (fresh,) = bench.join("zz")

    bench.advance(WINDOW_MS)
    bench.obey()

    assert [0, 1, 2] == [a.group_rank, fresh.group_rank, c.group_rank]


def test_late_member_is_fenced() -> None:
    """A member that comes after the window is told to stop, and may join the next round."""
    bench, (a, b, c) = orphans()
    for agent in (a, b):
        agent.hello(claim=agent.claim())
    bench.advance(WINDOW_MS)
    bench.obey()

    c.hello(claim=c.claim())

    assert (1, 2) == (stopped_round(c), bench.job().round_number)
    bench.obey()
    assert DesiredStandby(spare=True) == c.desired


def test_late_member_of_a_later_round_breaks_nothing() -> None:
    """A late agent may hold a higher round than the one that runs; the next goes beyond it."""
    _, (late, *_) = orphans(restarts=3)
    bench = Bench(SPEC)
    _, b, c = bench.run_round("x", "y", "z")
    assert (1, 4) == (bench.job().round_number, late.held)

    bench.adopt_agent(late).hello(claim=late.claim())
    bench.obey()
    assert (Phase.RUNNING, 1) == (bench.job().phase, bench.job().round_number)

    b.goodbye()
    bench.obey()
    assert (["x", "a", "z"], 5) == (bench.order(), bench.job().round_number)
    assert isinstance(c.desired, DesiredRun)


def change_port(claim: Claim) -> Claim:
    return replace(claim, header=replace(claim.header, master_port=1))


def change_number(claim: Claim) -> Claim:
    return replace(claim, header=replace(claim.header, number=claim.header.number - 1))


def change_place(claim: Claim) -> Claim:
    return replace(claim, assignment=replace(claim.assignment, group_rank=0, first_rank=0))


def change_ranks(claim: Claim) -> Claim:
    return replace(claim, assignment=replace(claim.assignment, first_rank=0))


@pytest.mark.parametrize("change", [change_port, change_number, change_place, change_ranks])
def test_disagreeing_round_is_formed_anew(change: object) -> None:
    """A round about which its members do not agree is stopped everywhere and formed anew."""
    assert callable(change)
    bench, agents = orphans(restarts=1)
    *most, odd = agents
    for agent in most:
        agent.hello(claim=agent.claim())
    odd.hello(claim=change(odd.claim()))

    bench.advance(WINDOW_MS)
    assert all(isinstance(agent.desired, DesiredStop) for agent in agents)
    bench.obey(*most)
    bench.obey(odd)

    assert (1, 3) == (bench.job().restart_count, bench.job().round_number)


def test_place_that_two_agents_claim_ends_the_round() -> None:
    """When every place is claimed and one of them twice, the round is over for everybody."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(claim=agent.claim())
    twin = bench.agent("twin")
    twin.told, twin.held = agents[2].told, 1
    twin.hello(claim=twin.claim())

    bench.advance(WINDOW_MS)
    assert [1] * 4 == [stopped_round(agent) for agent in (*agents, twin)]
    bench.obey()

    assert (2, 0) == (bench.job().round_number, bench.job().restart_count)


def test_member_that_could_not_start_in_the_window_ends_the_round() -> None:
    """A round of which a member says in the window that it did not start is not kept."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(claim=agent.claim(Activity.ASSIGNED))
    agents[1].refuse()

    bench.advance(WINDOW_MS)
    bench.obey()

    assert ([1, 2], 0) == (
        [header.number for header in bench.rounds()],
        bench.job().restart_count,
    )


def test_job_that_ended_in_the_window_is_not_adopted() -> None:
    """A job that was closed before the window ended stays closed, and its agents are told."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(claim=agent.claim())

    bench.take(inputs.JobBroken(agents[0].identity.job_id, "report"))
    bench.advance(WINDOW_MS)

    assert ([Outcome.FAILED] * 3, []) == (
        [finished(agent).outcome for agent in agents],
        bench.rounds(),
    )


def test_worker_that_failed_in_the_window_is_charged() -> None:
    """A failure that is reported before the round could be adopted counts like any other."""
    bench, agents = orphans()
    a, b, c = agents
    for agent in agents:
        agent.hello(claim=agent.claim())
    b.fail(worker_exit(7))
    assert Phase.FORMING is bench.job().phase

    bench.advance(WINDOW_MS)
    bench.obey()

    verdict = bench.job().verdict
    assert verdict is not None and verdict.culprit is not None
    assert (1, "b", 7) == (bench.job().restart_count, verdict.name, verdict.culprit.exit.exit_code)
    assert [0, 1, 2] == [a.group_rank, b.group_rank, c.group_rank]


def test_worker_that_failed_before_the_window_is_charged() -> None:
    """A failure that is in the snapshot of a Hello counts too."""
    bench, agents = orphans()
    for agent in agents:
        failed = agent is agents[1]
        exits = [worker_exit(7)] if failed else []
        agent.hello(claim=agent.claim(Activity.FAILED if failed else Activity.STARTED, exits))

    bench.advance(WINDOW_MS)
    bench.obey()

    assert 1 == bench.job().restart_count


def test_success_in_the_window_ends_the_run() -> None:
    """A round that succeeds while nobody leads it has succeeded."""
    bench, agents = orphans()
    a, b, c = agents
    a.hello(claim=a.claim(Activity.SUCCEEDED))
    for agent in (b, c):
        agent.hello(claim=agent.claim())
        agent.succeed()

    bench.advance(WINDOW_MS)

    assert (Outcome.SUCCEEDED, 1) == (bench.job().outcome, len(bench.job().history))


def test_started_in_the_window_counts() -> None:
    """A member that says Started in the window has started."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(claim=agent.claim(Activity.ASSIGNED))
    agents[0].start()

    bench.advance(WINDOW_MS)

    assert ["started", "assigned", "assigned"] == [a.the_node.activity.value for a in agents]
    assert WaitKind.START is bench.the_wait().kind


def test_member_that_broke_off_in_the_window_is_waited_for() -> None:
    """A member that is within its grace when the window ends is part of the round."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(claim=agent.claim())
    bench.advance(WINDOW_MS - 100)
    agents[2].break_off()
    bench.advance(100)
    assert Phase.RUNNING is bench.job().phase

    agents[2].hello(claim=agents[2].claim())
    bench.advance(1_000)

    assert (Phase.RUNNING, 1) == (bench.job().phase, len(bench.rounds()))


def test_round_that_was_being_stopped_goes_on_stopping() -> None:
    """A round of which a member is clean already is over; counts go on where it began."""
    bench, agents = orphans(restarts=1)
    a, b, c = agents
    a.hello(ready_round=2)
    b.hello(claim=b.claim(Activity.UNREADY))
    c.hello(claim=c.claim())

    bench.advance(WINDOW_MS)
    bench.obey()

    assert (["a", "b", "c"], 1, 3) == (
        sorted(bench.order()),
        bench.job().restart_count,
        bench.job().round_number,
    )


def test_round_before_the_latest_is_not_adopted() -> None:
    """When somebody was in a later round, what still runs of the earlier one is stopped."""
    bench, agents = orphans(restarts=1)
    a, b, c = agents
    a.hello(ready_round=9)
    for agent in (b, c):
        agent.hello(claim=agent.claim())

    bench.advance(WINDOW_MS)
    assert isinstance(b.desired, DesiredStop)
    bench.obey()
    bench.advance(bench.spec.last_call_ms)

    assert ([10], [1]) == (
        [header.number for header in bench.rounds()],
        [header.restart_count for header in bench.rounds()],
    )


def test_later_run_outranks_an_earlier_one() -> None:
    """Of two runs that are claimed the later one lives, whoever came first."""
    bench, agents = orphans()
    bench.join("fresh")
    for agent in agents:
        claim = agent.claim()
        agent.run = 5
        agent.hello(claim=replace(claim, header=replace(claim.header, run=5)))

    bench.advance(WINDOW_MS)

    assert (5, Phase.RUNNING, 1) == (bench.job().run, bench.job().phase, bench.job().round_number)
    assert RunOpened in {type(record) for record in bench.records}


def test_epoch_is_raised_above_the_reported() -> None:
    """A coordinator that agents come to from one with a higher epoch outranks it."""
    bench, agents = orphans()
    agents[0].epoch = EPOCH + 500

    agents[0].hello(claim=agents[0].claim())

    assert EPOCH + 501 == bench.state.epoch


def test_rounds_go_on_above_the_adopted() -> None:
    """The round after an adopted one has a higher number, and its counts go on."""
    bench, agents = orphans(restarts=2)
    for agent in agents:
        agent.hello(claim=agent.claim())
    bench.advance(WINDOW_MS)

    agents[1].fail()
    bench.obey()

    assert (4, 3) == (bench.job().round_number, bench.job().restart_count)
    assert [3, 4] == [header.number for header in bench.rounds()]


def test_budget_of_an_adopted_run_is_not_renewed() -> None:
    """Restarts that were charged by the former coordinator count."""
    bench, agents = orphans(restarts=3)
    for agent in agents:
        agent.hello(claim=agent.claim())
    bench.advance(WINDOW_MS)

    agents[1].fail()
    bench.obey()

    assert Outcome.FAILED is bench.job().outcome


def test_jobs_are_adopted_one_by_one() -> None:
    """One job's incomplete round does not keep another's from being adopted."""
    before = Bench(JobSpec(min_nodes=2, max_nodes=2))
    whole = before.run_round("a", "b", job_id="whole")
    torn = before.run_round("a", "b", job_id="torn")
    bench = Bench(before.spec, window_ms=WINDOW_MS)
    for agent in (*whole, torn[0]):
        bench.adopt_agent(agent).hello(claim=agent.claim())

    bench.advance(WINDOW_MS)

    assert (Phase.RUNNING, Phase.STOPPING) == (bench.job("whole").phase, bench.job("torn").phase)


def test_member_that_succeeded_and_drains() -> None:
    """An adopted round does not wait for the drain of a member whose part is done."""
    bench, agents = orphans()
    a, b, c = agents
    for agent in (a, b):
        agent.hello(claim=agent.claim())
    c.hello(claim=c.claim(Activity.SUCCEEDED), draining=(10_000, "SIGTERM"))

    bench.advance(20_000)

    assert (Phase.RUNNING, None) == (bench.job().phase, bench.wait())
