"""A coordinator that starts again decides what it would have decided had only the streams broken.

Random histories are continued twice: once every stream breaks, once the coordinator starts again.
In both all agents return at once, and send every report that was not acknowledged once more.
"""

from __future__ import annotations

import copy

import pytest
from msgspec.structs import replace

from rallypoint.server.clock import continue_ms
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.reads.durable import durable_job
from support.recovery.lives import World


def live(seed: int, steps: int) -> World:
    """Return a world after a random history, in which every node that is known has an agent."""
    world = World(seed, durable=True)
    for _ in range(steps):
        world.misfortune()
    world.bench.death = None
    for life in world.lives:
        life.agent.beats = True
    present = {life.agent.session for life in world.alive}
    while not present.issuperset(world.bench.state.nodes):  # a dead agent, until it is lost
        world.bench.advance(1_000)
        for life in world.alive:
            world.go_on(life)
    return world


def continue_twice(before: World) -> tuple[World, World]:
    """Return the worlds in which the streams have broken, and the coordinator has started again."""
    broken, restarted = before, copy.deepcopy(before)
    broken.bench.now_ms = continue_ms(broken.bench.now_ms)
    for life in broken.lives:
        life.break_off()
    restarted.restart()
    for world in (broken, restarted):
        for life in world.alive:
            life.connect()
    return broken, restarted


def without_epoch(job: Job) -> Job:
    """Return what both must agree about.

    A coordinator that starts again may give nodes more time to come.
    """
    round = job.round
    if round is not None:
        round = replace(round, header=replace(round.header, epoch=0, master_port=1))
    return durable_job(
        replace(job, round=round, since_epoch=0, spec_revision=0, forming_since_ms=0)
    )


@pytest.mark.parametrize("steps", [20, 40, 60])
@pytest.mark.parametrize("seed", range(40))
def test_start_is_no_more_than_broken_streams(seed: int, steps: int) -> None:
    """Every durable fact of the job is the same once all agents are back."""
    broken, restarted = continue_twice(live(seed, steps))

    one, other = broken.bench.state, restarted.bench.state
    assert one.jobs.keys() == other.jobs.keys()
    for job_id, job in one.jobs.items():
        assert without_epoch(job) == without_epoch(other.jobs[job_id])
    assert (one.barriers, one.arrivals, one.counted) == (
        other.barriers,
        other.arrivals,
        other.counted,
    )
    assert (one.keys, one.holding, one.gone) == (other.keys, other.holding, other.gone)
