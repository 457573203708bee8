"""What each method is about."""

from __future__ import annotations

from typing import Any

from rallypoint.server.rpc.routing.table import ROUTES, SUBJECTS, Subject
from rallypoint.wire.limits import SERVICES, find_rule


def test_every_method_has_a_row() -> None:
    """A new method must say which coordinator answers it."""
    methods = {f"{one.name}/{method.name}" for one in SERVICES for method in one.methods}

    assert methods == set(SUBJECTS)


def test_requests_about_a_job_name_it() -> None:
    """The field has the same name in all of them; the others have none."""
    for route in ROUTES.values():
        has_id = "job_id" in route.request.DESCRIPTOR.fields_by_name
        assert has_id == (route.subject in (Subject.JOB, Subject.JOB_OR_ALL)), route.path


def test_only_a_request_about_all_jobs_may_leave_the_job_out() -> None:
    """Where the contract requires the job, a call is about that job."""
    for route in ROUTES.values():
        fields: Any = route.request.DESCRIPTOR.fields_by_name
        if "job_id" in fields:
            rule = find_rule(fields["job_id"])
            assert rule is not None
            assert rule.required == (route.subject is Subject.JOB), route.path
