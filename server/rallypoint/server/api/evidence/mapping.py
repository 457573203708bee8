"""Evidence as messages and as structs."""

from __future__ import annotations

from collections.abc import Iterable

from rallypoint.server.core.model.evidence import Evidence, RankEvidence
from rallypoint.v1 import evidence_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.mapping import Mapper

RANKS_BYTES_MAX = 3_145_728
"""Bytes of the ranks in one answer, which may have 4 MiB."""
RANK = Mapper(RankEvidence, evidence_pb2.RankEvidence)
_EVIDENCE = Mapper(Evidence, evidence_pb2.Evidence, apart=("age",))


def evidence_message(evidence: Evidence, age_ms: int) -> evidence_pb2.Evidence:
    """Return what evidence says; `age_ms`: how long ago it was taken."""
    return _EVIDENCE.to_message(evidence, age=to_duration(age_ms))


def rank_messages(ranks: Iterable[RankEvidence]) -> list[evidence_pb2.RankEvidence]:
    """Return what ranks have sent, as many as fit into an answer."""
    messages, left = list[evidence_pb2.RankEvidence](), RANKS_BYTES_MAX
    for rank in ranks:
        message = RANK.to_message(rank)
        left -= message.ByteSize()
        if left < 0:
            break
        messages.append(message)
    return messages
