"""A job moves between coordinators that share a store, whatever ends or joins; no worker ends."""

from __future__ import annotations

import signal

import pytest

from rallypoint.server.etcd.lease import TTL_S
from rallypoint.v1 import job_pb2
from support.etcd.coordinators import Coordinators, until, until_job
from support.processes.commands import Command
from support.processes.jobs import is_started, pids
from support.processes.mailbox import Worker
from support.processes.world import World


def begin(world: World, owners: Coordinators) -> tuple[list[Command], list[Worker], job_pb2.Job]:
    """Run a job of two nodes with two workers each; return it when all workers run."""
    agents = [world.agent(name, "--max-restarts=3", nnodes="2", nproc=2) for name in ("a", "b")]
    workers = world.mailbox.workers(4)
    job = until_job(owners.seats[-1], world.job_id, lambda job: is_started(job, 1))
    for worker in workers:
        assert worker.env["RALLYPOINT_COORDINATOR"].startswith(owners.owner().address)
    return agents, workers, job


def is_back(job: job_pb2.Job) -> bool:
    return is_started(job, 1) and all(node.attached for node in job.nodes)


def finish(world: World, agents: list[Command], workers: list[Worker]) -> None:
    """A failure is counted, so the job's owner decides; then the job succeeds."""
    workers[1].kill()
    again = world.mailbox.workers(4, round=2)
    assert [1] * 4 == [worker.restart_count for worker in again]
    for worker in again:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
    assert 8 == len(world.mailbox.started())


def check_same(before: job_pb2.Job, after: job_pb2.Job) -> None:
    """The round is the same one, with the same workers, and nothing was counted."""
    assert before.round.header == after.round.header
    assert (pids(before), 0) == (pids(after), after.restart_count)


def test_owner_that_is_stopped_hands_its_jobs_over(world: World, on_one: Coordinators) -> None:
    """SIGTERM: another coordinator serves the job before a lease could end; exit code 0."""
    on_one.start_many(2)
    agents, workers, before = begin(world, on_one)
    owner = on_one.owner()
    (other,) = on_one.others()

    owner.command.signal(signal.SIGTERM)
    took_s = until(lambda: isinstance(other.job(world.job_id), job_pb2.Job))
    assert 0 == owner.command.wait()
    check_same(before, until_job(other, world.job_id, is_back))
    assert took_s < TTL_S - 1
    finish(world, agents, workers)


@pytest.mark.long
@pytest.mark.parametrize("role", ["owner", "other"])
def test_killed_coordinator(world: World, on_three: Coordinators, role: str) -> None:
    """Its jobs are served elsewhere; those of others never notice."""
    on_three.start_many(3)
    agents, workers, before = begin(world, on_three)
    killed = on_three.owner() if role == "owner" else on_three.others()[0]

    killed.command.kill()
    on_three.settle(*on_three.running())
    after = until_job(on_three.running()[0], world.job_id, is_back)
    check_same(before, after)
    if role == "other":
        assert [[], []] == [agent.events("coordinator_not_reached") for agent in agents]
    finish(world, agents, workers)


@pytest.mark.long
def test_owner_that_is_frozen_for_longer_than_its_lease(
    world: World, on_three: Coordinators
) -> None:
    """When it continues, it knows that it owns nothing any more, and takes its share again."""
    on_three.start_many(3)
    agents, workers, before = begin(world, on_three)
    frozen, others = on_three.owner(), on_three.others()

    frozen.command.signal(signal.SIGSTOP)
    on_three.settle(*others)
    check_same(before, until_job(others[0], world.job_id, is_back))
    frozen.command.signal(signal.SIGCONT)
    frozen.command.wait_event("decisions_stopped")
    on_three.settle(frozen, *others)
    check_same(before, until_job(frozen, world.job_id, is_back))
    finish(world, agents, workers)


@pytest.mark.long
def test_fourth_coordinator_takes_its_share(world: World, on_three: Coordinators) -> None:
    """Wherever the job is then, its round is the same; a call to any of the four finds it."""
    seats = on_three.start_many(3)
    agents, workers, before = begin(world, on_three)

    fourth = on_three.start()
    on_three.settle(*seats, fourth)
    for seat in on_three.seats:
        check_same(before, until_job(seat, world.job_id, is_back))
    finish(world, agents, workers)


@pytest.mark.long
def test_all_coordinators_are_killed(world: World, on_three: Coordinators) -> None:
    """New ones at the same addresses find the job in etcd."""
    seats = on_three.start_many(2)
    ports = [seat.address.rpartition(":")[2] for seat in seats]
    agents, workers, before = begin(world, on_three)
    for seat in seats:
        seat.command.kill()
    again = [on_three.start(f"--port={port}") for port in ports]

    on_three.settle(*again)
    check_same(before, until_job(again[0], world.job_id, is_back))
    finish(world, agents, workers)
