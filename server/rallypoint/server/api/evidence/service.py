"""EvidenceService: what the workers of a job do."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rallypoint.server.api.evidence.collecting import Collecting, Round, Taken, find_round
from rallypoint.server.api.evidence.mapping import evidence_message, rank_messages
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import Context, find_job
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import evidence_pb2
from rallypoint.v1 import evidence_service_pb2 as service_pb2
from rallypoint.v1 import evidence_service_pb2_grpc as service_grpc

REQUESTED = "requested"


class EvidenceService(service_grpc.EvidenceServiceServicer):
    """Serves operators, readers and agents."""

    def __init__(self, coordinator: Coordinator, collecting: Collecting) -> None:
        """Read jobs from `coordinator`; `collecting` has their evidence."""
        self._coordinator = coordinator
        self._collecting = collecting

    async def TakeEvidence(
        self, request: service_pb2.TakeEvidenceRequest, context: Context
    ) -> service_pb2.TakeEvidenceResponse:
        """Take evidence of the round that runs."""
        check(request)
        job_id = JobId(request.job_id)
        round = await self._coordinator.read(lambda state, now_ms: _find_round(state, job_id))
        if round is None:
            return service_pb2.TakeEvidenceResponse()
        taken = await self._collecting.take(round, REQUESTED)
        evidence, ranks = _show(taken, request.ranks)
        return service_pb2.TakeEvidenceResponse(evidence=evidence, ranks=ranks)

    async def GetEvidence(
        self, request: service_pb2.GetEvidenceRequest, context: Context
    ) -> service_pb2.GetEvidenceResponse:
        """Return the evidence that was taken last."""
        check(request)
        job_id = JobId(request.job_id)
        await self._coordinator.read(lambda state, now_ms: find_job(state, job_id))
        taken = self._collecting.latest(job_id)
        if taken is None:
            return service_pb2.GetEvidenceResponse()
        evidence, ranks = _show(taken, request.ranks)
        return service_pb2.GetEvidenceResponse(evidence=evidence, ranks=ranks)

    async def ReportEvidence(
        self, request: service_pb2.ReportEvidenceRequest, context: Context
    ) -> service_pb2.ReportEvidenceResponse:
        """Take the report of an agent."""
        check(request)
        job_id = JobId(request.job_id)
        await self._coordinator.read(lambda state, now_ms: find_job(state, job_id))
        self._collecting.report(
            *(job_id, SessionId(request.session_id), request.evidence_id),
            request.workers,
            has_more=request.has_more,
        )
        return service_pb2.ReportEvidenceResponse()


def _find_round(state: State, job_id: JobId) -> Round | None:
    """Return the round of a job that has workers; None: there is none.

    Raises:
        InputRefused: when there is no such job.
    """
    return find_round(state, find_job(state, job_id))


def _show(
    taken: Taken, wanted: Iterable[int]
) -> tuple[evidence_pb2.Evidence, list[evidence_pb2.RankEvidence]]:
    """Return evidence, and the wanted ranks."""
    age_ms = int((time.monotonic() - taken.at_s) * 1000)
    ranks = [taken.ranks[rank] for rank in sorted(set(wanted)) if rank in taken.ranks]
    return evidence_message(taken.evidence, age_ms), rank_messages(ranks)
