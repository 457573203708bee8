"""etcd cannot be reached, or takes no change: workers run on, and everything says why."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from rallypoint.v1 import job_pb2
from support.etcd.cluster import Cluster, running
from support.etcd.coordinators import Coordinators, Refused, Seat, until, until_job
from support.processes.commands import RALLYPOINT, Command
from support.processes.jobs import is_started, pids
from support.processes.mailbox import Worker
from support.processes.world import World

STATUS = health_pb2.HealthCheckResponse
MIB = 1024 * 1024


def begin(world: World, seat: Seat) -> tuple[Command, list[Worker], job_pb2.Job]:
    """Run a job of two workers."""
    agent = world.agent("a", "--max-restarts=3", nproc=2)
    workers = world.mailbox.workers(2)
    return agent, workers, until_job(seat, world.job_id, lambda job: is_started(job, 1))


def until_refused(world: World, seat: Seat, *parts: str) -> None:
    """Wait until GetJob says why nothing is decided, and the health is as bad."""

    def look() -> bool:
        found = seat.job(world.job_id)
        return (
            isinstance(found, Refused)
            and found.details.reason == "STORE_UNAVAILABLE"
            and all(part in found.text for part in parts)
        )

    until(look)
    until(lambda: seat.jobs.health() == STATUS.NOT_SERVING)


def finish(world: World, agent: Command, workers: list[Worker]) -> None:
    """A failure is counted again; the job succeeds."""
    if not workers:
        again = world.mailbox.workers(2, round=2)
    else:
        workers[1].kill()
        again = world.mailbox.workers(2, round=2)
    for worker in again:
        worker.tell("exit", "0")
    assert 0 == agent.wait()
    assert 4 == len(world.mailbox.started())


@pytest.mark.long
def test_members_of_etcd_are_killed(world: World, on_three: Coordinators, trio: Cluster) -> None:
    """One: nothing happens. Two: workers run on, all say why. One back: it continues."""
    seats = on_three.start_many(2)
    agent, workers, before = begin(world, seats[0])
    trio.find_leader().kill()
    left = [member for member in trio.members if member.process is not None]
    until_job(seats[1], world.job_id, lambda job: job.nodes[0].attached)
    assert [STATUS.SERVING] * 2 == [seat.jobs.health() for seat in seats]

    left[0].kill()
    for seat in seats:
        until_refused(world, seat, "etcd cannot be reached: 2 of 3 endpoints do not answer")
    agent.wait_event("coordinator_not_reached", why="2 of 3 endpoints do not answer")
    assert 2 == len(world.mailbox.started())

    trio.restart(left[0])
    on_three.settle(*seats)
    after = until_job(seats[0], world.job_id, lambda job: job.nodes[0].attached)
    until(lambda: seats[0].jobs.health() == STATUS.SERVING)
    assert (before.round.header, pids(before)) == (after.round.header, pids(after))
    assert not agent.events("worker_failed", "round_stopped")
    finish(world, agent, workers)


@pytest.mark.long
def test_etcd_is_out_of_space(world: World, tmp_path: Path) -> None:
    """The message says what to do; once that is done, what has happened meanwhile is decided."""
    with running(tmp_path / "etcd", 1, f"--quota-backend-bytes={4 * MIB}") as etcd:
        owners = Coordinators(world, etcd, "/rallypoint")
        seats = owners.start_many(2)
        agent, workers, _ = begin(world, seats[0])
        _fill(etcd)
        for seat in seats:
            until_refused(world, seat, "etcd is out of space", "etcdctl alarm disarm")
        agent.wait_event("coordinator_not_reached", why="etcd is out of space")
        workers[1].kill()
        assert 2 == len(world.mailbox.started())

        _make_room(etcd)
        finish(world, agent, [])
        until(lambda: [seat.jobs.health() for seat in seats] == [STATUS.SERVING] * 2)
        owners.close()


def _fill(etcd: Cluster) -> None:
    """Write until etcd raises its alarm."""
    value = "x" * 100_000

    def is_full() -> bool:
        try:
            etcd.control("put", "/filling", value)
        except AssertionError:
            return True
        return False

    until(is_full)


def _make_room(etcd: Cluster) -> None:
    """Do what the message says."""
    etcd.control("del", "/filling")
    revision = etcd.control("endpoint", "status", "--write-out=fields")
    number = next(line for line in revision.splitlines() if line.startswith('"Revision"'))
    etcd.control("compact", number.rpartition(" ")[2])
    etcd.control("defrag")
    etcd.control("alarm", "disarm")


@pytest.mark.long
def test_data_of_etcd_are_lost(world: World, tmp_path: Path) -> None:
    """Nothing is decided in an empty store; with a backup, all continue where it ends."""
    backup = str(tmp_path / "backup.jsonl")
    with running(tmp_path / "etcd") as etcd:
        owners = Coordinators(world, etcd, "/rallypoint")
        seats = owners.start_many(2)
        agent, workers, before = begin(world, seats[0])
        assert 0 == world.run(RALLYPOINT, "journal", "export", owners.place, backup).returncode
        (member,) = etcd.members
        member.kill()
        shutil.rmtree(member.folder / member.name)
        (member.folder / member.name).mkdir(mode=0o700)
        etcd.restart(member)
        for seat in seats:
            until_refused(world, seat, "etcd has lost or replaced what was under /rallypoint")
        assert not etcd.control("get", "--prefix", "/rallypoint/", "--keys-only")

        assert 0 == world.run(RALLYPOINT, "journal", "import", backup, owners.place).returncode
        owners.settle(*seats)
        after = until_job(seats[0], world.job_id, lambda job: job.nodes[0].attached)
        assert (before.round.header, pids(before)) == (after.round.header, pids(after))
        finish(world, agent, workers)
        owners.close()


@pytest.mark.long
def test_coordinator_starts_before_etcd(world: World, tmp_path: Path) -> None:
    """It listens and says what it waits for; agents wait, and begin when etcd is there."""
    with running(tmp_path / "etcd") as etcd:
        (member,) = etcd.members
        member.kill()
        owners = Coordinators(world, etcd, "/rallypoint")
        seat = owners.start()
        assert seat.jobs.health() == STATUS.NOT_SERVING
        until_refused(world, seat, "cannot be reached")
        seat.command.wait_event("decisions_stopped")
        agent = world.agent("a", "--max-restarts=3", nproc=2)
        absent = agent.wait_event("coordinator_not_reached", why="cannot be reached")
        assert "hint" not in absent, "there is a coordinator"

        etcd.restart(member)
        seat.command.wait_event("decisions_resumed")
        workers = world.mailbox.workers(2)
        until(lambda: seat.jobs.health() == STATUS.SERVING)
        finish(world, agent, workers)
        owners.close()
