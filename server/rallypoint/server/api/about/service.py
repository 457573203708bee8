"""CoordinatorService: what the coordinator is and how busy it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from rallypoint.server.access.protection import OPEN, Protection, describe
from rallypoint.server.api.about.views import coordinator_message, start_now
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc


class CoordinatorService(coordinator_grpc.CoordinatorServiceServicer):
    """Serves operators."""

    def __init__(
        self,
        coordinator: Coordinator,
        count_watches: Callable[[], int],
        protection: Protection = OPEN,
    ) -> None:
        """Describe `coordinator`, which starts now, with the number of watches."""
        self._coordinator = coordinator
        self._count_watches = count_watches
        self._protection = protection
        self._start = start_now()

    async def GetCoordinator(
        self,
        request: coordinator_pb2.GetCoordinatorRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> coordinator_pb2.GetCoordinatorResponse:
        """Return the coordinator."""
        watches = self._count_watches()
        message = await self._coordinator.read(
            lambda state, now_ms: coordinator_message(state, self._start, watches, now_ms)
        )
        response = coordinator_pb2.GetCoordinatorResponse(coordinator=message)
        describe(response, self._protection)
        return response
