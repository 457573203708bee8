"""What agents report while a new coordinator waits for them counts for the round it adopts."""

from __future__ import annotations

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from support.core.adoption import WINDOW_MS, orphans
from support.core.fake_agents import finished, worker_exit


def test_member_that_could_not_start_in_the_window_ends_the_round() -> None:
    """A round that a member did not start, as it reports in the window, is not adopted."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(held=agent.held_round(NodeState.ASSIGNED))
    agents[1].fail_to_start()

    bench.advance(WINDOW_MS)
    bench.obey()

    assert ([1, 2], 0) == (
        [header.number for header in bench.rounds()],
        bench.job().counts.restart_count,
    )


def test_job_that_ended_in_the_window_is_not_adopted() -> None:
    """A job that closed before the window ended stays closed, and its agents learn that."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(held=agent.held_round())

    bench.take(inputs.JobBroken(agents[0].identity.job_id, "report"))
    bench.advance(WINDOW_MS)

    assert ([Outcome.FAILED] * 3, []) == (
        [finished(agent).outcome for agent in agents],
        bench.rounds(),
    )


def test_worker_that_failed_in_the_window_is_charged() -> None:
    """A failure that is reported before the adoption counts like any other."""
    bench, agents = orphans()
    a, b, c = agents
    for agent in agents:
        agent.hello(held=agent.held_round())
    b.fail(worker_exit(7))
    assert Phase.FORMING is bench.job().phase

    bench.advance(WINDOW_MS)
    bench.obey()

    verdict = bench.job().verdict
    assert verdict is not None and verdict.culprit is not None
    assert (1, "b", 7) == (
        bench.job().counts.restart_count,
        verdict.name,
        verdict.culprit.exit.exit_code,
    )
    assert [0, 1, 2] == [a.group_rank, b.group_rank, c.group_rank]


def test_worker_that_failed_before_the_window_is_charged() -> None:
    """A failure in the held round of a Hello counts too."""
    bench, agents = orphans()
    for agent in agents:
        failed = agent is agents[1]
        exits = [worker_exit(7)] if failed else []
        agent.hello(held=agent.held_round(NodeState.FAILED if failed else NodeState.STARTED, exits))

    bench.advance(WINDOW_MS)
    bench.obey()

    assert 1 == bench.job().counts.restart_count


def test_success_in_the_window_ends_the_run() -> None:
    """A round that succeeds without a coordinator has succeeded."""
    bench, agents = orphans()
    a, b, c = agents
    a.hello(held=a.held_round(NodeState.SUCCEEDED))
    for agent in (b, c):
        agent.hello(held=agent.held_round())
        agent.succeed()

    bench.advance(WINDOW_MS)

    assert (Outcome.SUCCEEDED, 1) == (bench.job().outcome, len(bench.job().history))


def test_started_in_the_window_counts() -> None:
    """A member that reports Started in the window has started."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(held=agent.held_round(NodeState.ASSIGNED))
    agents[0].start()

    bench.advance(WINDOW_MS)

    assert ["started", "assigned", "assigned"] == [a.known_node.state.value for a in agents]
    assert WaitKind.START is bench.the_wait().kind


def test_member_that_broke_off_in_the_window_is_waited_for() -> None:
    """A member in its grace period when the window ends is part of the round."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(held=agent.held_round())
    bench.advance(WINDOW_MS - 100)
    agents[2].break_off()
    bench.advance(100)
    assert Phase.RUNNING is bench.job().phase

    agents[2].hello(held=agents[2].held_round())
    bench.advance(1_000)

    assert (Phase.RUNNING, 1) == (bench.job().phase, len(bench.rounds()))
