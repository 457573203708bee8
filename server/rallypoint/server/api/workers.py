"""WorkerService: reports of workers, answered when their turn is in the journal."""

from __future__ import annotations

from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import Context
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.v1 import worker_service_pb2_grpc as worker_grpc
from rallypoint.wire.durations import to_ms


class WorkerService(worker_grpc.WorkerServiceServicer):
    """Serves workers."""

    def __init__(self, coordinator: Coordinator, tokens: WorkerTokens) -> None:
        """Pass reports to `coordinator`; `tokens` prove that a caller is a worker of a round."""
        self._coordinator = coordinator
        self._tokens = tokens

    async def ReportProgress(
        self, request: worker_pb2.ReportProgressRequest, context: Context
    ) -> worker_pb2.ReportProgressResponse:
        """Note a step."""
        claim = self._tokens.claim(request.job_id, context.invocation_metadata())
        report = to_progress(request, claim)

        def answer(state: State, now_ms: int) -> int:
            job = state.jobs.get(report.job_id)
            if job is None:
                return report.step  # forgotten in the same turn
            return max(job.counts.step, 0 if job.round is None else job.round.step)

        step = await self._coordinator.ask(report, answer)
        return worker_pb2.ReportProgressResponse(step=step)


def to_progress(
    request: worker_pb2.ReportProgressRequest, claim: inputs.Claim
) -> inputs.Progressed:
    """Return a report of progress.

    Args:
        request: from a worker.
        claim: what its token says.
    """
    check(request)
    return inputs.Progressed(claim, request.step, to_ms(request.step_age))
