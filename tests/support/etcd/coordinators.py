"""Coordinators as processes that share a store in a real etcd."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
from msgspec import Struct

from rallypoint.server.core.model.shards import SHARDS_DEFAULT, shard_of
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.v1 import job_pb2
from rallypoint.wire.errors import Details, unpack_details
from support.etcd.cluster import Cluster
from support.processes.commands import COORDINATOR, Command
from support.processes.feed import LIMIT_S
from support.processes.jobs import Jobs
from support.processes.world import NEW, World

POLL_S = 0.02


class Refused(Struct, frozen=True):
    """How a call has failed."""

    code: grpc.StatusCode
    text: str
    details: Details


class Seat(Struct, eq=False):
    """A coordinator, and what asks it."""

    command: Command
    address: str
    jobs: Jobs

    def shards(self) -> list[coordinator_pb2.Shard]:
        """Return the shards as it shows them; none while it cannot."""
        stub = coordinator_grpc.CoordinatorServiceStub(self.jobs.channel)
        try:
            answer = stub.GetCoordinator(coordinator_pb2.GetCoordinatorRequest(), timeout=LIMIT_S)
        except grpc.RpcError:
            return []
        return list(answer.coordinator.shards)

    def owned(self) -> set[int]:
        """Return the shards that it serves itself."""
        return {one.number for one in self.shards() if one.served and not one.owner}

    def job(self, job_id: str) -> job_pb2.Job | Refused:
        """Return a job, or how the call has failed."""
        try:
            return self.jobs.get(job_id)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            details = unpack_details(tuple(error.trailing_metadata() or ()))
            return Refused(error.code(), error.details() or "", details)


class Coordinators:
    """Those of one store, and agents that know all of them."""

    def __init__(
        self,
        world: World,
        etcd: Cluster,
        prefix: str,
        open_jobs: Callable[[str], Jobs] = Jobs,
    ) -> None:
        """Start none; `open_jobs` connects to one at an address."""
        self.world = world
        self._open_jobs = open_jobs
        self.place = f"etcd://{','.join(etcd.endpoints)}{prefix}"
        self.seats: list[Seat] = []

    def start(self, *flags: str) -> Seat:
        """Start one more."""
        argv = [COORDINATOR, "--host=127.0.0.1", "--port=0", f"--state={self.place}", *NEW, *flags]
        command = self.world.start(f"coordinator {len(self.seats)}", argv)
        address = command.stdout_line().removeprefix("listening on ")
        self.seats.append(Seat(command, address, self._open_jobs(address)))
        self.world.target = ",".join(seat.address for seat in self.seats)
        return self.seats[-1]

    def start_many(self, count: int, *flags: str) -> list[Seat]:
        """Start several; return them when each serves its share."""
        made = [self.start(*flags) for _ in range(count)]
        self.settle(*made)
        return made

    def settle(self, *seats: Seat) -> None:
        """Wait until these serve all shards, each about its share."""
        least = SHARDS_DEFAULT // len(seats)

        def is_settled() -> bool:
            owned = [seat.owned() for seat in seats]
            return (
                min(map(len, owned)) >= least
                and sum(map(len, owned)) == len(set().union(*owned)) == SHARDS_DEFAULT
            )

        until(is_settled)

    def owner(self) -> Seat:
        """Return the owner of the test's job."""
        shard = shard_of(self.world.job_id, SHARDS_DEFAULT)
        return next(seat for seat in self.running() if shard in seat.owned())

    def others(self) -> list[Seat]:
        """Return those that run and do not own the job."""
        owner = self.owner()
        return [seat for seat in self.running() if seat is not owner]

    def running(self) -> list[Seat]:
        """Return those whose processes run."""
        return [seat for seat in self.seats if seat.command.is_running()]

    def close(self) -> None:
        """Close the channels."""
        for seat in self.seats:
            seat.jobs.channel.close()


def until(is_true: Callable[[], bool]) -> float:
    """Wait for what only coordinators and etcd can make true; return for how long, in seconds."""
    began_s = time.monotonic()
    while not is_true():
        assert time.monotonic() < began_s + LIMIT_S
        time.sleep(POLL_S)
    return time.monotonic() - began_s


def until_job(seat: Seat, job_id: str, is_wanted: Callable[[job_pb2.Job], bool]) -> job_pb2.Job:
    """Wait until a coordinator shows a job as wanted; return the job."""
    shown: list[job_pb2.Job] = []

    def look() -> bool:
        job = seat.job(job_id)
        if isinstance(job, job_pb2.Job):
            shown.append(job)
        return isinstance(job, job_pb2.Job) and is_wanted(job)

    until(look)
    return shown[-1]
