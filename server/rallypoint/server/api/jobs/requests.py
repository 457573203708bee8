"""Requests about jobs, of operators and readers."""

from __future__ import annotations

from rallypoint.server.api.jobs.lists import JobList
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import require
from rallypoint.server.contract.mappers import OUTCOMES, PHASES
from rallypoint.server.contract.spec import to_spec
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Outcome
from rallypoint.v1 import job_pb2, job_service_pb2
from rallypoint.wire.mapping import Mapper


def to_job_id(request: job_service_pb2.GetJobRequest | job_service_pb2.WatchJobRequest) -> JobId:
    """Return the job that a reader asks for."""
    check(request)
    return JobId(request.job_id)


def to_view(
    request: job_service_pb2.GetJobRequest | job_service_pb2.WatchJobRequest,
) -> job_pb2.JobView.ValueType:
    """Return how much of a job a reader asks for."""
    return request.view or job_pb2.JOB_VIEW_FULL


CANCEL = Mapper(inputs.CancelJob, job_service_pb2.CancelJobRequest)
RESTART = Mapper(inputs.RestartJob, job_service_pb2.RestartJobRequest)
DELETE = Mapper(inputs.DeleteJob, job_service_pb2.DeleteJobRequest)


def to_create(request: job_service_pb2.CreateJobRequest) -> inputs.CreateJob:
    """Return the request to create a job."""
    check(request)
    spec = to_spec(request.spec, "spec")
    return inputs.CreateJob(JobId(request.job_id), spec, request.request_id)


def to_job_list(request: job_service_pb2.ListJobsRequest, *, by_wall: bool = False) -> JobList:
    """Return which jobs a reader asks for, in which order; checked by `to_page`.

    Args:
        request: the reader's.
        by_wall: the list is a part of one over several shards.
    """
    for place, phase in enumerate(request.phases):
        require(phase in _PHASES, f"phases[{place}]", "is not a phase")
    for place, outcome in enumerate(request.outcomes):
        require(outcome in _OUTCOMES, f"outcomes[{place}]", "is not an outcome")
    return JobList(
        phases=frozenset(_PHASES[phase] for phase in request.phases),
        outcomes=frozenset(_OUTCOMES[outcome] for outcome in request.outcomes),
        prefix=request.job_id_prefix,
        latest_first=request.order == job_service_pb2.JOB_ORDER_LATEST,
        by_wall=by_wall,
    )


_PHASES = {number: phase for phase, number in PHASES.items()}
_OUTCOMES: dict[job_pb2.Outcome.ValueType, Outcome | None] = {
    **{number: outcome for outcome, number in OUTCOMES.items()},
    job_pb2.OUTCOME_OPEN: None,
}


def to_update(request: job_service_pb2.UpdateJobRequest) -> inputs.UpdateJob:
    """Return the request to update a job."""
    check(request)
    return inputs.UpdateJob(
        JobId(request.job_id),
        **{name: getattr(request.update, name) for name in _find_wanted(request)},
        revision=request.revision,
        request_id=request.request_id,
        reason=request.reason,
        require_nodes=request.require_nodes,
    )


def _find_wanted(request: job_service_pb2.UpdateJobRequest) -> set[str]:
    """Return the fields of the update that count: those of the mask, else those that are set."""
    filled = {field.name for field, _ in request.update.ListFields()}
    names = " or ".join(job_service_pb2.JobUpdate.DESCRIPTOR.fields_by_name)
    fields = len(job_service_pb2.JobUpdate.DESCRIPTOR.fields)
    require(
        len(request.update_mask.paths) <= fields, "update_mask", f"has more than {fields} paths"
    )
    for number, path in enumerate(request.update_mask.paths):
        where = f"update_mask.paths[{number}]"
        require(
            path in job_service_pb2.JobUpdate.DESCRIPTOR.fields_by_name, where, f"must be {names}"
        )
        require(path in filled, f"update.{path}", "is missing, but update_mask names it")
    require(bool(filled), "update", f"must set {names}")
    return set(request.update_mask.paths) or filled
