"""Which roles may make which call.

A method that has no row is refused, so a new one cannot be forgotten: a test compares the table
with the contract.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rallypoint.server.rpc.guards.access.caller import Role


class Row(Struct, frozen=True):
    """Who may call a method."""

    roles: tuple[Role, ...]
    """One of them is needed. Empty: no caller may."""
    has_job: bool = True
    """It is about the job in `job_id`, or about all jobs if that is empty or absent. False: it is
    about no jobs, so callers that are allowed some jobs only may call it, too."""
    is_change: bool = False
    """Each call has an audit line."""
    is_open: bool = False
    """Anyone may call it, without saying who it is."""
    checks_worker: bool = False
    """Its servicer checks the worker token itself, against the round. So do not refuse one whose
    signature is unknown: after a restart without a journal, the round's members still hold it."""


_EACH = (Role.AGENT, Role.OPERATOR, Role.VIEWER, Role.WORKER)
_READ = Row(_EACH)
_ABOUT_NO_JOB = Row((*_EACH, Role.RELAY), has_job=False)
_CHANGE = Row((Role.OPERATOR,), is_change=True)
_WORKER = Row((Role.WORKER,), checks_worker=True)
_JOIN = Row((Role.AGENT,))
_CARRY = Row((Role.RELAY,), has_job=False)
"""The agents that a relay carries are checked one by one, each for its own job. The coordinator
believes what a relay says of them, so agents do not have this right."""
_OPEN = Row((), has_job=False, is_open=True)
CLOSED = Row((), has_job=False)
"""For a method without a row."""

_METHODS: Mapping[str, Row] = {
    "rallypoint.v1.AgentService/Session": _JOIN,
    "rallypoint.v1.AgentService/Relay": _CARRY,
    "rallypoint.v1.BarrierService/Arrive": _WORKER,
    "rallypoint.v1.BarrierService/ListBarriers": _READ,
    "rallypoint.v1.CoordinatorService/GetCoordinator": _ABOUT_NO_JOB,
    "rallypoint.v1.EventService/ListEvents": _READ,
    "rallypoint.v1.EventService/WatchEvents": _READ,
    "rallypoint.v1.JobService/GetJob": _READ,
    "rallypoint.v1.JobService/ListJobs": _READ,
    "rallypoint.v1.JobService/WatchJob": _READ,
    "rallypoint.v1.JobService/WatchJobs": _READ,
    "rallypoint.v1.JobService/ListRuns": _READ,
    "rallypoint.v1.JobService/ListRounds": _READ,
    "rallypoint.v1.JobService/CreateJob": _CHANGE,
    "rallypoint.v1.JobService/CancelJob": _CHANGE,
    "rallypoint.v1.JobService/RestartJob": _CHANGE,
    "rallypoint.v1.JobService/UpdateJob": _CHANGE,
    "rallypoint.v1.JobService/DeleteJob": _CHANGE,
    "rallypoint.v1.KeyValueService/GetKeys": _WORKER,
    "rallypoint.v1.KeyValueService/PutKey": _WORKER,
    "rallypoint.v1.KeyValueService/AddToKey": _WORKER,
    "rallypoint.v1.KeyValueService/CompareAndSetKey": _WORKER,
    "rallypoint.v1.KeyValueService/DeleteKey": _WORKER,
    "rallypoint.v1.KeyValueService/WriteKeys": _WORKER,
    "rallypoint.v1.KeyValueService/ListKeys": _WORKER,
    "rallypoint.v1.KeyValueService/WatchKeys": _WORKER,
    "rallypoint.v1.NodeService/GetNode": _READ,
    "rallypoint.v1.NodeService/ListNodes": _READ,
    "rallypoint.v1.NodeService/DrainNode": _CHANGE,
    "rallypoint.v1.NodeService/CordonNode": _CHANGE,
    "rallypoint.v1.NodeService/UncordonNode": _CHANGE,
    "rallypoint.v1.WorkerService/ReportProgress": _WORKER,
    "grpc.health.v1.Health/Check": _OPEN,  # probes have no token
    "grpc.health.v1.Health/List": _OPEN,
    "grpc.health.v1.Health/Watch": _OPEN,
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _ABOUT_NO_JOB,
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ABOUT_NO_JOB,
}
POLICY: Mapping[str, Row] = {f"/{method}": row for method, row in _METHODS.items()}
"""By path."""
