"""Which roles may make which call, as the options of the methods in the .proto files say.

A method without the option is refused, so a new one cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rallypoint.v1 import calls_pb2
from rallypoint.wire.access import Role
from rallypoint.wire.limits import SERVICES


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
_ABOUT_NO_JOB = Row((*_EACH, Role.RELAY), has_job=False)
_OPEN = Row((), has_job=False, is_open=True)
CLOSED = Row((), has_job=False)
"""For a method without the option."""
_ROWS: Mapping[int, Row] = {
    calls_pb2.CALLERS_READERS: Row(_EACH),
    calls_pb2.CALLERS_OPERATORS: Row((Role.OPERATOR,), is_change=True),
    calls_pb2.CALLERS_WORKERS: Row((Role.WORKER,), checks_worker=True),
    calls_pb2.CALLERS_AGENTS: Row((Role.AGENT,)),
    # The agents that a relay carries are checked one by one, each for its own job. The coordinator
    # believes what a relay says of them, so agents do not have this right.
    calls_pb2.CALLERS_RELAYS: Row((Role.RELAY,), has_job=False),
    calls_pb2.CALLERS_ALL: _ABOUT_NO_JOB,
}

POLICY: Mapping[str, Row] = {
    f"/{service.full_name}/{method.name}": _ROWS.get(
        method.GetOptions().Extensions[calls_pb2.call].callers, CLOSED
    )
    for service in SERVICES
    for method in service.methods
} | {
    "/grpc.health.v1.Health/Check": _OPEN,  # probes have no token
    "/grpc.health.v1.Health/List": _OPEN,
    "/grpc.health.v1.Health/Watch": _OPEN,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _ABOUT_NO_JOB,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ABOUT_NO_JOB,
}
"""By path."""
