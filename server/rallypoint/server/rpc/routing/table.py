"""What each method of the contract is about, and so which coordinator answers it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from msgspec import Struct

from rallypoint.wire.limits import SERVICES


class Subject(Enum):
    """What a call is about."""

    RELAY = "the jobs of all agents of a relay, each named by a Hello"
    JOB = "the job in `job_id`"
    STREAM = "the job of an agent, whose Hello names it"
    ALL = "all jobs"
    JOB_OR_ALL = "the job in `job_id`; all jobs when that is empty"


SUBJECTS: Mapping[str, Subject] = {
    "AgentService/Session": Subject.STREAM,
    "AgentService/Relay": Subject.RELAY,
    "BarrierService/Arrive": Subject.JOB,
    "BarrierService/ListBarriers": Subject.JOB,
    "CoordinatorService/GetCoordinator": Subject.ALL,
    "EventService/ListEvents": Subject.JOB_OR_ALL,
    "EventService/WatchEvents": Subject.JOB_OR_ALL,
    "JobService/GetJob": Subject.JOB,
    "JobService/ListJobs": Subject.ALL,
    "JobService/WatchJob": Subject.JOB,
    "JobService/WatchJobs": Subject.ALL,
    "JobService/ListRuns": Subject.JOB,
    "JobService/ListRounds": Subject.JOB,
    "JobService/CreateJob": Subject.JOB,
    "JobService/CancelJob": Subject.JOB,
    "JobService/RestartJob": Subject.JOB,
    "JobService/UpdateJob": Subject.JOB,
    "JobService/DeleteJob": Subject.JOB,
    "KeyValueService/GetKeys": Subject.JOB,
    "KeyValueService/PutKey": Subject.JOB,
    "KeyValueService/AddToKey": Subject.JOB,
    "KeyValueService/CompareAndSetKey": Subject.JOB,
    "KeyValueService/DeleteKey": Subject.JOB,
    "KeyValueService/WriteKeys": Subject.JOB,
    "KeyValueService/ListKeys": Subject.JOB,
    "KeyValueService/WatchKeys": Subject.JOB,
    "NodeService/GetNode": Subject.JOB,
    "NodeService/ListNodes": Subject.JOB,
    "NodeService/DrainNode": Subject.JOB,
    "NodeService/CordonNode": Subject.JOB,
    "NodeService/UncordonNode": Subject.JOB,
    "WorkerService/ReportProgress": Subject.JOB,
}
"""By service and method, without the package."""


class Route(Struct, frozen=True):
    """A method of the contract."""

    path: str
    """Such as "/rallypoint.v1.JobService/GetJob"."""
    service: str
    """Full name."""
    name: str
    subject: Subject
    request: type[Message]
    """Class of the requests."""
    response: type[Message]
    """Class of the answers."""
    is_stream: bool
    """There are many answers."""


def _to_route(method: MethodDescriptor) -> Route:
    service = method.containing_service
    return Route(
        path=f"/{service.full_name}/{method.name}",
        service=service.full_name,
        name=method.name,
        subject=SUBJECTS[f"{service.name}/{method.name}"],
        request=GetMessageClass(method.input_type),
        response=GetMessageClass(method.output_type),
        is_stream=method.server_streaming,
    )


ROUTES: Mapping[str, Route] = {
    route.path: route
    for route in (_to_route(method) for service in SERVICES for method in service.methods)
}
"""By path."""


def is_about_all(route: Route, request: Any) -> bool:
    """Return whether a request is about the jobs of all shards."""
    match route.subject:
        case Subject.ALL:
            return True
        case Subject.JOB_OR_ALL:
            return not request.job_id
    return False
