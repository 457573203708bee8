"""Answers the coordinator when it asks for evidence: on a separate call, beside the session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import grpc
import grpc.aio

from rallypoint.base.log import get_logger
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import evidence_pb2
from rallypoint.v1 import evidence_service_pb2 as service_pb2
from rallypoint.wire.durations import to_ms
from rallypoint.wire.limits import EVIDENCE_BYTES_MAX

log = get_logger()

LIMIT_S_MAX = 2.0
"""How long an agent collects at most, whatever the coordinator asks for."""
REPORT_S_MAX = 2.0
"""How long a report may take; the coordinator does not wait longer."""

Collect = Callable[[int, float], Awaitable[Sequence[evidence_pb2.RankEvidence]]]
"""Returns what the workers of a round do, within so many seconds."""
Send = Callable[[service_pb2.ReportEvidenceRequest], Awaitable[None]]
"""Sends a report to the coordinator of the session; raises a gRPC error if it cannot."""


class EvidenceReports:
    """Answers requests for evidence, one at a time: the latest one counts."""

    def __init__(self, session_id: str, job_id: str, collect: Collect, send: Send) -> None:
        """Begin without a request.

        Args:
            session_id: the agent's incarnation.
            job_id: its job.
            collect: finds out what the workers do.
            send: sends a report.
        """
        self._session_id = session_id
        self._job_id = job_id
        self._collect = collect
        self._send = send
        self._task: asyncio.Task[None] | None = None

    def answer(self, request: agent_pb2.CollectEvidence, tasks: asyncio.TaskGroup) -> None:
        """Collect and report in a task, in place of an earlier request."""
        if self._task is not None:
            self._task.cancel()
        self._task = tasks.create_task(self._answer(request))

    async def _answer(self, request: agent_pb2.CollectEvidence) -> None:
        limit_s = min(to_ms(request.limit) / 1000, LIMIT_S_MAX)
        try:
            workers = await self._collect(request.round, limit_s)
            async with asyncio.timeout(REPORT_S_MAX):
                for report in self._reports(request.evidence_id, workers):
                    await self._send(report)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            why = f"it took longer than {REPORT_S_MAX:g} s"
            if isinstance(error, grpc.aio.AioRpcError):
                why = error.details() or error.code().name
            log.warning("evidence_not_reported", round=request.round, why=why)
        except Exception as error:  # a bug in what looks at workers must not end them
            log.error("evidence_failed", round=request.round, exc_info=error)

    def _reports(
        self, evidence_id: str, workers: Sequence[evidence_pb2.RankEvidence]
    ) -> Iterator[service_pb2.ReportEvidenceRequest]:
        """Yield requests that are short enough, at least one."""
        report = self._new_report(evidence_id)
        size = 0
        for worker in workers:
            added = worker.ByteSize() + 8  # its tag and length
            if report.workers and size + added > EVIDENCE_BYTES_MAX:
                report.has_more = True
                yield report
                report, size = self._new_report(evidence_id), 0
            report.workers.append(worker)
            size += added
        yield report

    def _new_report(self, evidence_id: str) -> service_pb2.ReportEvidenceRequest:
        return service_pb2.ReportEvidenceRequest(
            job_id=self._job_id, session_id=self._session_id, evidence_id=evidence_id
        )
