"""Verdicts."""

from __future__ import annotations

from rallypoint.server.contract.mappers import CAUSES, CONSEQUENCES
from rallypoint.server.contract.node import exit_message
from rallypoint.server.core.model.verdict import FailureGroup, Verdict
from rallypoint.server.core.model.worker import FailedWorker
from rallypoint.server.core.verdicts.folding import shared_error
from rallypoint.server.core.verdicts.policy import describe_consequence
from rallypoint.v1 import verdict_pb2


def describe_verdict(verdict: Verdict) -> str:
    """Return a verdict as one line for a person."""
    then = describe_consequence(verdict)
    return f"{verdict.text}; {then}" if then else verdict.text


def verdict_message(verdict: Verdict, now_ms: int | None) -> verdict_pb2.Verdict:
    """Return a verdict; only the culprit includes its output. Ages are those at `now_ms`."""
    then = describe_consequence(verdict)
    return verdict_pb2.Verdict(
        cause=CAUSES[verdict.cause],
        round=verdict.round,
        node_name=verdict.name or "",
        culprit=None
        if verdict.culprit is None
        else _failed_worker_message(verdict.culprit, now_ms, whole=True),
        collateral=[
            _failed_worker_message(worker, now_ms, whole=False) for worker in verdict.collateral
        ],
        collateral_count=verdict.collateral_count,
        consequence=CONSEQUENCES[verdict.consequence],
        text=describe_verdict(verdict),
        consequence_text=then,
        groups=[_group_message(group) for group in verdict.groups],
        evidence=verdict.evidence,
    )


def _group_message(group: FailureGroup) -> verdict_pb2.FailureGroup:
    return verdict_pb2.FailureGroup(
        ranks=[verdict_pb2.RankRange(first=first, last=last) for first, last in group.ranks],
        count=group.count,
        exit_text=group.key[0],
        exit_code=group.exit_code,
        signal=group.signal,
        error=shared_error(group),
        victim=group.is_victim,
    )


def _failed_worker_message(
    worker: FailedWorker, now_ms: int | None, *, whole: bool
) -> verdict_pb2.FailedWorker:
    return verdict_pb2.FailedWorker(
        node_name=worker.name,
        rank=worker.rank,
        local_rank=worker.exit.local_rank,
        pid=worker.exit.pid,
        host_name=worker.host,
        command=worker.command if whole else "",
        exit=exit_message(worker.exit, now_ms, whole=whole),
    )
