"""WorkerService: reports of workers, answered when their turn is in the journal."""

from __future__ import annotations

import grpc

from rallypoint.server.coordinator import Coordinator, InputRefused
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.convert.requests import to_progress
from rallypoint.server.rpc.errors import refusal_status
from rallypoint.server.rpc.guards.worker_tokens import WorkerTokens
from rallypoint.server.rpc.status import abort_with, invalid_status
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.v1 import worker_service_pb2_grpc as worker_grpc


class WorkerService(worker_grpc.WorkerServiceServicer):
    """Serves workers."""

    def __init__(self, coordinator: Coordinator, tokens: WorkerTokens) -> None:
        """Pass reports to `coordinator`; `tokens` prove that a caller is a worker of a round."""
        self._coordinator = coordinator
        self._tokens = tokens

    async def ReportProgress(
        self,
        request: worker_pb2.ReportProgressRequest,
        context: grpc.aio.ServicerContext[
            worker_pb2.ReportProgressRequest, worker_pb2.ReportProgressResponse
        ],
    ) -> worker_pb2.ReportProgressResponse:
        """Note a step."""

        def answer(state: State, now_ms: int) -> int:
            job = state.jobs.get(report.job_id)
            if job is None:
                return report.step  # forgotten in the same turn
            return max(job.counts.step, 0 if job.round is None else job.round.step)

        try:
            claim = self._tokens.claim(request.job_id, context.invocation_metadata())
            report = to_progress(request, claim)
            step = await self._coordinator.ask(report, answer)
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except InputRefused as refused:
            await abort_with(context, refusal_status(refused.refusal))
        return worker_pb2.ReportProgressResponse(step=step)
