"""EvidenceService, without what agents report."""

from __future__ import annotations

from collections.abc import Iterable

from rallypoint.client.attempts import READ_S_MAX, Call, Method
from rallypoint.v1 import evidence_service_pb2 as evidence_pb2

_SERVICE = "/rallypoint.v1.EvidenceService/"
TAKE_EVIDENCE = Method(
    f"{_SERVICE}TakeEvidence", evidence_pb2.TakeEvidenceRequest, evidence_pb2.TakeEvidenceResponse
)
GET_EVIDENCE = Method(
    f"{_SERVICE}GetEvidence", evidence_pb2.GetEvidenceRequest, evidence_pb2.GetEvidenceResponse
)


def take_evidence(
    job_id: str, ranks: Iterable[int]
) -> Call[evidence_pb2.TakeEvidenceRequest, evidence_pb2.TakeEvidenceResponse]:
    """Find out what the workers do. One that is asked again takes it once more."""
    request = evidence_pb2.TakeEvidenceRequest(job_id=job_id, ranks=ranks)
    return Call(TAKE_EVIDENCE, request, attempt_s=READ_S_MAX)


def get_evidence(
    job_id: str, ranks: Iterable[int]
) -> Call[evidence_pb2.GetEvidenceRequest, evidence_pb2.GetEvidenceResponse]:
    """Read the evidence that was taken last."""
    request = evidence_pb2.GetEvidenceRequest(job_id=job_id, ranks=ranks)
    return Call(GET_EVIDENCE, request, attempt_s=READ_S_MAX)
