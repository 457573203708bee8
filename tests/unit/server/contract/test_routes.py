"""What the options of each method say."""

from __future__ import annotations

from typing import Any

from rallypoint.server.access.policy import CLOSED, POLICY
from rallypoint.server.contract.routes import ROUTES
from rallypoint.v1 import calls_pb2
from rallypoint.wire.limits import find_rule


def test_every_method_says_what_it_is_about_and_who_may_call_it() -> None:
    """A new method without the options would be answered by any coordinator, and refused."""
    for route in ROUTES.values():
        assert route.subject != calls_pb2.SUBJECT_UNSPECIFIED, route.path
        assert POLICY[route.path] is not CLOSED, route.path


def test_requests_about_a_job_name_it() -> None:
    """The field has the same name in all of them; the others have none."""
    about_jobs = (calls_pb2.SUBJECT_JOB, calls_pb2.SUBJECT_JOB_OR_ALL)
    for route in ROUTES.values():
        has_id = "job_id" in route.request.DESCRIPTOR.fields_by_name
        assert has_id == (route.subject in about_jobs), route.path


def test_only_a_request_about_all_jobs_may_leave_the_job_out() -> None:
    """Where the contract requires the job, a call is about that job."""
    for route in ROUTES.values():
        fields: Any = route.request.DESCRIPTOR.fields_by_name
        if "job_id" in fields:
            rule = find_rule(fields["job_id"])
            assert rule is not None
            assert rule.required == (route.subject == calls_pb2.SUBJECT_JOB), route.path
