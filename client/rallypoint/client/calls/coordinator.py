"""CoordinatorService."""

from __future__ import annotations

from rallypoint.client.attempts import READ_S_MAX, Call, Method
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2

GET_COORDINATOR = Method(
    "/rallypoint.v1.CoordinatorService/GetCoordinator",
    coordinator_pb2.GetCoordinatorRequest,
    coordinator_pb2.GetCoordinatorResponse,
)


def get_coordinator() -> Call[
    coordinator_pb2.GetCoordinatorRequest, coordinator_pb2.GetCoordinatorResponse
]:
    """Read what the coordinator says about itself."""
    return Call(GET_COORDINATOR, coordinator_pb2.GetCoordinatorRequest(), attempt_s=READ_S_MAX)
