"""Rounds continue when the coordinator starts again from its journal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import JobNoted
from rallypoint.server.core.model.desired import DesiredRun, DesiredStop
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.model.verdict import GROUPS_MAX, Consequence, VerdictCause
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.core.rounds.rounds import CULPRIT_DUE_MS
from rallypoint.server.core.state.state import RUNNING_MS
from support.core.coordinator import Bench, Death, Died
from support.core.decisions import RoundSealed, RoundSettled, RoundStopped
from support.core.fake_agents import FakeAgent, come_back, finished, worker_exit
from support.core.health import SPEC, health

PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1)
LEASE_MS = Timing().lease_ms
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"


def running(spec: JobSpec = PAIR, **facts: object) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a durable coordinator with a round that runs on the nodes a and b.

    It serves for long enough not to be taken for one whose first window was open.
    """
    bench = Bench(spec, durable=True)
    bench.advance(10_000)
    a, b = bench.run_round("a", "b", **facts)
    return bench, a, b


def test_running_round_goes_on() -> None:
    """Members that return keep their round; its start is announced once."""
    bench, a, b = running()

    bench.restart()
    for agent in (a, b):
        come_back(agent)
    bench.advance(60_000)

    assert Phase.RUNNING is bench.job().phase
    assert [1] == [header.number for header in bench.rounds()]
    assert all(isinstance(agent.desired, DesiredRun) for agent in (a, b))
    assert [NodeState.STARTED] * 2 == [agent.known_node.state for agent in (a, b)]
    assert 1 == bench.events().count("round_started")
    assert not {"node_lost", "node_joined"} & set(bench.events()[-4:])


def test_outage_is_as_large_as_before() -> None:
    """Also beyond the nodes that are remembered one by one."""
    bench = Bench(JobSpec(min_nodes=40, max_nodes=40), durable=True)
    bench.advance(10_000)
    agents = bench.run_round(*(f"n{number}" for number in range(40)))
    for agent in agents[:30]:
        agent.break_off()
    bench.advance(LEASE_MS)
    assert bench.the_verdict().text.startswith("30 of 40 nodes were lost")

    bench.restart()
    for agent in agents[30:]:
        come_back(agent)
    bench.obey()

    assert Phase.FORMING is bench.job().phase
    assert bench.the_verdict().text.startswith("30 of 40 nodes were lost")


def test_round_that_was_starting_starts_once() -> None:
    """A member that had not started when the coordinator died has its time to start again."""
    bench = Bench(PAIR, durable=True)
    bench.advance(10_000)
    a, b = bench.join("a", "b")
    a.start()

    bench.restart()
    come_back(a)
    come_back(b, NodeState.ASSIGNED)
    bench.advance(20_000)
    assert Phase.RUNNING is bench.job().phase
    assert 0 == bench.events().count("round_started")
    b.start()

    assert 1 == bench.events().count("round_started")
    bench.advance(60_000)
    assert [1] == [header.number for header in bench.rounds()]


def test_member_that_does_not_return_is_lost_by_name() -> None:
    """After the time to return, which is at least a lease; the other member re-forms."""
    bench, a, b = running(replace(PAIR, min_nodes=1))

    bench.restart()
    come_back(a)
    bench.advance(LEASE_MS - 1)
    assert isinstance(a.desired, DesiredRun)
    bench.advance(1)

    assert isinstance(a.desired, DesiredStop)
    bench.obey(a)
    verdict = bench.the_verdict()
    assert (VerdictCause.NODE_LOST, "b") == (verdict.cause, verdict.name)
    assert Consequence.REFORMED is verdict.consequence
    assert (0, 2) == (bench.job().counts.restart_count, bench.job().round_number)
    assert b.node is None


def test_failure_that_is_repeated_counts_once() -> None:
    """It was reported, and the answer was lost: one charge, one failure, one for the node."""
    bench, a, b = running(SPEC)
    a.fail()
    verdict = bench.the_verdict()
    assert Phase.STOPPING is bench.job().phase

    bench.restart()
    assert verdict == bench.the_verdict()
    come_back(a, NodeState.FAILED, (worker_exit(1),), acknowledged=a.sequence - 1)
    a.sequence -= 1
    a.fail()
    come_back(b)
    round = bench.job().round
    assert round is not None and (1, 1) == (round.failure_count, len(round.failures))
    assert verdict == bench.the_verdict()
    bench.obey()

    assert 1 == bench.job().counts.restart_count
    assert 1 == len(health(bench, "a").failures_ms)
    text = verdict.text.replace("was reported first", "failed first")
    assert replace(verdict, consequence=Consequence.RESTARTED, text=text) == bench.the_verdict()
    assert [1, 2] == [header.number for header in bench.rounds()]


def test_many_equal_failures_that_are_repeated_count_once() -> None:
    """Also those of which the round keeps no more than their rank."""
    bench, a, b = running(workers=40)
    exits = [worker_exit(1, local_rank=rank, said="ValueError: x") for rank in range(40)]
    a.fail(*exits[:30])
    before = bench.job().round
    assert before is not None and 30 == before.failure_count

    bench.restart()
    come_back(a, NodeState.FAILED, exits)
    come_back(b)

    after = bench.job().round
    assert after is not None and 40 == after.failure_count
    assert [(((0, 39),), 40)] == [(group.ranks, group.count) for group in after.failure_groups]
    assert before.failures == after.failures


def test_many_different_failures_that_are_repeated_count_once() -> None:
    """Also those that no group shows, because there are too many of them."""
    bench, a, b = running(workers=40)
    exits = [worker_exit(rank + 1, local_rank=rank) for rank in range(40)]
    a.fail(*exits[:30])
    before = bench.job().round
    assert before is not None and 30 == before.failure_count
    assert GROUPS_MAX == len(before.failure_groups)

    bench.restart()
    come_back(a, NodeState.FAILED, exits)
    come_back(b)

    after = bench.job().round
    assert after is not None and 40 == after.failure_count
    assert ((GROUPS_MAX, 39),) == after.unlisted_ranks


def test_failure_while_the_coordinator_was_away_is_charged() -> None:
    """The Hello brings it; the round ends for it, once."""
    bench, a, b = running()

    bench.restart()
    come_back(b)
    come_back(a, NodeState.FAILED, (worker_exit(3),))
    bench.obey()

    assert VerdictCause.WORKER_FAILED is bench.the_verdict().cause
    assert 1 == bench.job().counts.restart_count
    assert 1 == bench.events().count("round_stopped")


def test_wait_for_the_culprit_goes_on() -> None:
    """Its end stays where it was, it is announced once, and its provisional verdict stays."""
    bench, a, b = running()
    a.fail(worker_exit(1, said=RESET))
    verdict = bench.the_verdict()
    assert Phase.RUNNING is bench.job().phase

    bench.restart()
    come_back(b)
    come_back(a, NodeState.FAILED, (worker_exit(1, said=RESET),))
    assert Phase.RUNNING is bench.job().phase
    assert verdict == bench.the_verdict()
    bench.advance(CULPRIT_DUE_MS - 2)
    assert Phase.RUNNING is bench.job().phase
    bench.advance(1)

    assert Phase.STOPPING is bench.job().phase
    assert 1 == bench.events().count("culprit_awaited")
    assert 0 == bench.events().count("verdict_corrected")


def test_recorded_error_and_its_exit_are_one_failure() -> None:
    """The record was reported before the start, the exit after it."""
    bench, a, b = running()
    error = ErrorRecord("ValueError: x", "", 0)
    record = WorkerExit(0, 4_000, None, None, ran_ms=60_000, error=error)
    a.record(record)

    bench.restart()
    come_back(b)
    come_back(a, NodeState.FAILED, (record,))
    a.fail(replace(worker_exit(7, said="ValueError: x", ran_ms=60_700)))
    bench.obey()

    culprit = bench.the_verdict().culprit
    assert culprit is not None and 7 == culprit.exit.exit_code
    assert (0, 1) == (bench.the_verdict().collateral_count, bench.job().counts.restart_count)


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("step", range(4))
def test_stop_is_settled_once(step: int, *, is_written: bool) -> None:
    """Wherever in stopping and settling the coordinator dies, before or after the append."""
    bench, a, b = running()
    bench.death = Death(step, is_written)
    for act in (a.fail, a.ready, b.ready, a.start):
        try:
            act()
        except Died:
            break
    bench.restart()
    has_failed = a.last_round == 1
    come_back(b)
    if has_failed:
        come_back(a, NodeState.FAILED, (worker_exit(1),))
    else:
        come_back(a)
    bench.obey()

    decided = [record for record in bench.decisions if isinstance(record, RoundSettled)]
    assert [Consequence.RESTARTED] == [record.consequence for record in decided]
    assert [1, 2] == [header.number for header in bench.rounds()]
    assert 1 == sum(isinstance(record, RoundStopped) for record in bench.decisions)
    assert (Phase.RUNNING, 1) == (bench.job().phase, bench.job().counts.restart_count)
    kinds = [type(r) for r in bench.decisions if isinstance(r, RoundSealed | RoundSettled)]
    assert [RoundSealed, RoundSettled, RoundSealed] == kinds


def test_success_before_the_start_counts() -> None:
    """A member that has succeeded keeps its success, whether or not it returns."""
    bench, a, b = running()
    a.succeed()

    bench.restart()
    come_back(b)
    bench.advance(LEASE_MS)
    assert Phase.RUNNING is bench.job().phase
    b.succeed()

    assert Outcome.SUCCEEDED is finished(b).outcome


def test_blocked_node_counts_once() -> None:
    """The report that processes survive is sent again."""
    bench, a, b = running(SPEC)
    b.fail()
    a.block()

    bench.restart()
    come_back(b, NodeState.FAILED, (worker_exit(1),))
    come_back(a, NodeState.BLOCKED, acknowledged=a.sequence - 1)
    a.sequence -= 1
    a.block()

    assert 1 == len(health(bench, "a").failures_ms)
    assert a.known_node.set_aside


def test_progress_counts_after_the_start() -> None:
    """A round that has advanced ends the streak, although its steps are not reported again."""
    bench, a, b = running(replace(PAIR, max_restarts=3))
    a.fail()
    bench.obey()
    assert 1 == bench.job().counts.streak
    claim = inputs.Claim(a.identity.job_id, 1, 2, "t", is_signed=True)
    for step in (1, 2, 3, 50, 80, 99):
        bench.take(inputs.Progressed(claim, step))

    bench.restart()
    for agent in (a, b):
        come_back(agent)
    b.fail()
    bench.obey()

    assert (1, 2) == (bench.job().counts.streak, bench.job().counts.restart_count)
    assert 50 <= bench.job().counts.step <= 99


def test_step_that_is_shown_is_nearly_the_latest() -> None:
    """And of the steps of half a minute one is journalled, however many there were."""
    bench, a, _ = running()
    claim = inputs.Claim(a.identity.job_id, 1, 1, "t", is_signed=True)
    for step in range(1, 601):
        bench.advance(1_000)
        bench.take(inputs.Progressed(claim, step))
    noted = [record for record in bench.records if isinstance(record, JobNoted)]

    bench.restart()

    round = bench.job().round
    assert round is not None and 600 - RUNNING_MS // 1_000 < round.step <= 600
    assert len(noted) < 35


def test_planned_stop_is_what_it_was() -> None:
    """A growth that was stopping its round is settled as a growth."""
    bench, a, b = running(replace(PAIR, max_nodes=3))
    (c,) = bench.join("c")
    while bench.job().phase is Phase.RUNNING:
        bench.advance(1_000)

    bench.restart()
    for agent in (c, a, b):
        come_back(agent)
    bench.obey()

    assert [RoundReason.FIRST, RoundReason.GROWTH] == [h.reason for h in bench.rounds()]
    assert (1, 0) == (bench.job().counts.growths, bench.job().counts.reformations)
    assert ["a", "b", "c"] == bench.order()


def test_clean_member_that_does_not_return_is_no_cause() -> None:
    """The journal does not know who was clean when the coordinator died in a stop."""
    bench, a, b = running()
    a.fail(worker_exit(3))
    b.ready()
    assert Phase.STOPPING is bench.job().phase

    bench.restart()
    come_back(a, NodeState.FAILED, (worker_exit(3),))
    a.ready()
    bench.advance(60_000)

    verdict = bench.the_verdict()
    assert (VerdictCause.WORKER_FAILED, "a") == (verdict.cause, verdict.name)
    assert 1 == bench.job().counts.restart_count


def test_member_that_does_not_return_explains_broken_connections() -> None:
    """Its peers show no other cause: it may have been lost before the stop."""
    bench, a, _ = running(replace(PAIR, min_nodes=1))
    a.fail(worker_exit(1, said=RESET))
    bench.advance(1_000)
    assert Phase.STOPPING is bench.job().phase

    bench.restart()
    come_back(a, NodeState.FAILED, (worker_exit(1, said=RESET),))
    a.ready()
    bench.advance(LEASE_MS)

    assert VerdictCause.NODE_LOST is bench.the_verdict().cause
    assert 0 == bench.job().counts.restart_count
