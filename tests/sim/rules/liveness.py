"""Liveness: once faults have stopped, every job runs on as many nodes as it can, or ends.

Two stages, each within a bound that is stated here. First every job comes to rest: either all its
agents have exited, or one round of it runs on every node that it may use. Then its workers finish,
and every agent exits with the code of the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.agent.core.held_round import Stage
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.rounds.waits import GROW_AFTER_MS_MAX, LAST_CALL_FACTOR
from sim.rules.rules import Violation
from sim.seeds.scenario import JobPlan

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.world import World

LOOK_MS = 500
"""Time between two checks for convergence."""


def bound_ms(world: World) -> int:
    """Return how long jobs may take to converge, in ms.

    Formula: what one node may take to notice (lease, back-off, window), twice, since one loss can
    hide behind another; two stops; the start deadline; one join timeout; one pause; the waits that
    arrivals renew; and the growths that are still allowed.
    """
    timing = world.timing
    total_ms = 0
    for job in world.jobs:
        spec = job.spec
        lease_ms = max(timing.lease_ms, timing.compute_lease_ms(spec, sessions=0))
        notice_ms = lease_ms + 3_000 + timing.window_ms + timing.reconnect_grace_ms
        growths = 0
        server = world.server_of(job.job_id)
        if server is not None and job.job_id in server.state.jobs:
            growths = server.state.jobs[job.job_id].counts.growths
        grow_ms = min(spec.grow_after_ms << min(growths + 2, 16), GROW_AFTER_MS_MAX)
        waits_ms = LAST_CALL_FACTOR * (spec.last_call_ms + spec.settle_time_ms)
        stop_ms = spec.shutdown_timeout_ms + timing.stop_slack_ms + 12_000
        join_ms = max(spec.join_timeout_ms, *(plan.coordinator_timeout_ms for plan in job.nodes))
        job_ms = 2 * notice_ms + 3 * stop_ms + timing.start_due_ms + join_ms + waits_ms + grow_ms
        total_ms = max(total_ms, job_ms + 60_000)
    return total_ms


def settle(world: World) -> None:
    """Run until every job has converged, or raise."""
    bound = bound_ms(world)
    due_ms = world.clock.now_ms + bound
    while True:
        world.clock.run_until(world.clock.now_ms + LOOK_MS)
        problems = [problem for job in world.jobs for problem in _unrest(world, job)]
        problems += _strangers(world)
        if not problems:
            return
        if world.clock.now_ms >= due_ms:
            raise Violation("Liveness", f"after {bound} ms: " + "; ".join(problems))


def finish(world: World) -> None:
    """Let the workers finish, and run until no agent is left, or raise."""
    running = {job.job_id for job in world.jobs if _agents(world, job)}
    world.finish_work()
    bound = bound_ms(world)
    due_ms = world.clock.now_ms + bound
    # A shard may just be moving from one coordinator to another.
    while any(host.has_agent for host in world.hosts) or not all(map(world.server_of, running)):
        world.clock.run_until(world.clock.now_ms + LOOK_MS)
        if world.clock.now_ms >= due_ms:
            left = [host.name for host in world.hosts if host.has_agent]
            raise Violation("Liveness", f"after {bound} ms {left} have not exited")
    for host in world.hosts:
        if host.processes:
            raise Violation("Liveness", f"{host.name}: processes are left")
    for job_id in sorted(running):
        server = world.server_of(job_id)
        job = None if server is None else server.state.jobs.get(job_id)
        if job is None or job.phase is not Phase.CLOSED:
            raise Violation("Liveness", f"{job_id} has no outcome")
        world.coverage.counts["final", job.outcome.value if job.outcome else "none"] += 1
        if job.outcome is None or job.outcome.value != "succeeded":
            raise Violation("Liveness", f"{job_id} ended as {job.outcome}: {job.verdict}")


def _agents(world: World, job: JobPlan) -> list[Agent]:
    return [
        host.agent
        for host in world.hosts
        if host.plan.job_id == job.job_id and host.agent is not None and not host.agent.is_gone
    ]


def _strangers(world: World) -> list[str]:
    """Return which agents with other flags are still there: they would begin another run."""
    return [
        f"{agent.host.name} is there"
        for agent in world.agents.values()
        if agent.host.is_stranger and not agent.is_gone
    ]


def _unrest(world: World, job: JobPlan) -> list[str]:
    """Return why a job has not converged yet, or nothing."""
    agents = _agents(world, job)
    if not agents:
        left = [host.name for host in world.hosts if host.processes and host.plan in job.nodes]
        return [f"{job.job_id}: processes on {left}"] if left else []
    server = world.server_of(job.job_id)
    known = None if server is None else server.state.jobs.get(job.job_id)
    if known is None or known.round is None or known.phase is not Phase.RUNNING:
        phase = "unknown" if known is None else known.phase.value
        stages = {agent.host.name: _stage(agent) for agent in agents}
        return [f"{job.job_id} is {phase}, agents {stages}"]
    header, spec = known.round.header, known.spec
    runners = [agent for agent in agents if _is_in(agent, header.number, header.epoch)]
    spares = [agent for agent in agents if agent not in runners]
    problems = [
        f"{agent.host.name} is {_stage(agent)} and not in round {header.number}"
        for agent in spares
        if agent.state.held is not None
    ]
    problems += [f"{agent.host.name} drains" for agent in agents if _drains(agent)]
    problems += [
        f"{agent.host.name} has {len(agent.state.reports)} unacknowledged reports"
        for agent in agents
        if agent.state.reports
    ]
    problems += [f"{agent.host.name} is away" for agent in agents if not agent.is_attached]
    if len(runners) + len(known.round.succeeded_gone) != header.group_world_size:
        problems.append(f"{job.job_id}: {len(runners)} run round {header.number} of {header}")
    may_grow = spec.grow and not known.round.any_finished
    if may_grow and spares and len(runners) < spec.max_nodes:
        problems.append(f"{job.job_id}: {len(spares)} spares did not join")
    group = world.group(job.job_id, header)
    if group.is_broken or not group.is_joined:
        problems.append(f"{job.job_id}: the workers of round {header.number} are not together")
    return problems


def _drains(agent: Agent) -> bool:
    """Return whether the node will leave, as far as the agent or the coordinator knows."""
    server = agent.world.server_of(agent.host.plan.job_id)
    node = None if server is None else server.state.nodes.get(agent.session)
    return agent.state.drain is not None or (node is not None and node.drain is not None)


def _stage(agent: Agent) -> str:
    held, ending = agent.state.held, agent.state.ending
    stage = "standing by" if held is None else held.stage.value
    return f"leaving, {stage}" if ending is not None else stage


def _is_in(agent: Agent, number: int, epoch: int) -> bool:
    held = agent.state.held
    if held is None or agent.state.ending is not None:
        return False
    is_up = held.stage in (Stage.RUNNING, Stage.SUCCEEDED)
    return is_up and (held.number, held.order.header.epoch) == (number, epoch)
