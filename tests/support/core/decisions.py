"""What a step decides about jobs, one by one, in order: the journal has only what came of it.

Tests judge decisions, not differences. `step` takes a step of the core and puts each decision among
its records, where the step has made it; `journalled` takes them out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from unittest.mock import patch

from msgspec import Struct

from rallypoint.server.core import step as core
from rallypoint.server.core.messages import inputs, records
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import Counts, DrainRequest, Job, NodeHealth
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import Member, RoundHeader, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, Verdict
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import State
from rallypoint.server.core.step import Transition


class Decision(Struct, frozen=True):
    """Something about a job."""

    job_id: JobId


class RunOpened(Decision, frozen=True):
    """A run began, or was taken over with the facts that its agents reported."""

    run: int
    since_epoch: int
    spec: JobSpec
    counts: Counts


class RoundSealed(Decision, frozen=True):
    """A round was sealed or adopted."""

    header: RoundHeader
    members: tuple[Member, ...]


class RoundStopped(Decision, frozen=True):
    """The round was stopped everywhere."""

    round: int
    reason: RoundReason


class RoundSettled(Decision, frozen=True):
    """The end of a round was judged."""

    round: int
    reason: RoundReason
    consequence: Consequence
    counts: Counts


class RunClosed(Decision, frozen=True):
    """The run has its outcome."""

    run: int
    outcome: Outcome
    verdict: Verdict | None


class JobUpdated(Decision, frozen=True):
    """An operator changed the specification of the run."""

    spec: JobSpec


class NodeHealthChanged(Decision, frozen=True):
    """A node failed, was kept out or was released."""

    health: NodeHealth


class DrainRequested(Decision, frozen=True):
    """An operator requested the drain of a node."""

    request: DrainRequest


class DrainRequestEnded(Decision, frozen=True):
    """The drain request for this name is over."""

    name: NodeName


Record = records.Record | Decision
"""What a step of `step` has."""


class _Watched(Draft):
    """A draft that notes the decisions of its step."""

    def put_job(self, job: Job) -> None:
        self.records += _decide(self.job(job.job_id), job)  # type: ignore[arg-type]
        super().put_job(job)


def step(state: State, input: inputs.Input, now_ms: int) -> Transition:
    """Return what a step decides; its records have its decisions, too."""
    with patch.object(core, "Draft", _Watched):
        return core.step(state, input, now_ms)


def journalled(of_step: Iterable[Record]) -> tuple[records.Record, ...]:
    """Return what of the records of a step the journal has."""
    return tuple(record for record in of_step if not isinstance(record, Decision))


def _decide(was: Job | None, job: Job) -> Iterator[Decision]:
    job_id = job.job_id
    if was is None or _is_opened(was, job):
        yield RunOpened(job_id, job.run, job.since_epoch, job.spec, job.counts)
    elif was.spec_revision != job.spec_revision:
        yield JobUpdated(job_id, job.spec)
    if was is not None:
        yield from _decide_about_nodes(was, job)
    old, new = None if was is None else was.round, job.round
    if new is not None and (old is None or old.header != new.header):
        yield RoundSealed(job_id, new.header, new.members)
        old = None
    if new is not None and new.stop_reason is not None:
        if old is None or old.stop_reason is None:
            yield RoundStopped(job_id, new.header.number, new.stop_reason)
        if was is not None and old is not None and was.history != job.history:
            failed = job.history[-1].verdict
            consequence = Consequence.REFORMED if failed is None else failed.consequence
            number = new.header.number
            yield RoundSettled(job_id, number, job.next_reason, consequence, job.counts)
    if job.phase is Phase.CLOSED and (was is None or was.phase is not Phase.CLOSED):
        assert job.outcome is not None
        yield RunClosed(job_id, job.run, job.outcome, job.verdict)


def _is_opened(was: Job, job: Job) -> bool:
    is_same = (was.run, was.since_epoch, was.launch_id) == (job.run, job.since_epoch, job.launch_id)
    return not is_same or (was.spec != job.spec and was.spec_revision == job.spec_revision)


def _decide_about_nodes(was: Job, job: Job) -> Iterator[Decision]:
    before = {health.name: health for health in was.health}
    after = {health.name: health for health in job.health}
    for name in before | after:
        if before.get(name) != after.get(name):
            yield NodeHealthChanged(job.job_id, after.get(name, NodeHealth(name)))
    asked = {request.name for request in job.drain_requests}
    for request in was.drain_requests:
        if request.name not in asked:
            yield DrainRequestEnded(job.job_id, request.name)
    for request in job.drain_requests:
        if request not in was.drain_requests:
            yield DrainRequested(job.job_id, request)
