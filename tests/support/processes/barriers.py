"""Barriers as a coordinator shows them."""

from __future__ import annotations

import time

from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from support.processes.feed import LIMIT_S
from support.processes.world import World


def await_arrival(world: World, rank: int, name: str) -> None:
    """Wait until a rank has arrived at a barrier of the test's job. No call waits for that."""
    stub = barrier_grpc.BarrierServiceStub(world.jobs.channel)
    request = barrier_pb2.ListBarriersRequest(job_id=world.job_id)
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        barriers = stub.ListBarriers(request, timeout=LIMIT_S).barriers
        if any(one.name == name and rank in one.arrived.ranks for one in barriers):
            return
    raise AssertionError(f"rank {rank} has not arrived at {name}")
