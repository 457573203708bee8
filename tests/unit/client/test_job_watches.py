"""Lists and watches of jobs: what the clients ask for, and where they continue."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from rallypoint.client import errors
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.wire.errors import pack_status
from support.clients.scripted import BROKEN, calling

FORMS = pytest.mark.parametrize("form", ["sync", "aio"])


@FORMS
async def test_watch_of_a_job_continues_after_its_revision(form: str) -> None:
    """Over all its runs, and while there is no job."""
    states = [
        jobs_pb2.WatchJobResponse(revision=4, missing=True),
        jobs_pb2.WatchJobResponse(revision=9, job=job_pb2.Job(run=1)),
        jobs_pb2.WatchJobResponse(revision=12, job=job_pb2.Job(run=2)),
    ]
    async with calling(form) as at:
        at.script.answers["WatchJob"] = [[states[0], BROKEN], [states[1], BROKEN], [states[2]]]
        assert states == await at.list("watch_job", "j", across_runs=True, after=3)
        asked = at.script.requests["WatchJob"]

    assert [3, 4, 9] == [one.after_revision for one in asked]
    assert all(one.across_runs for one in asked)


GAP = pack_status(
    grpc.StatusCode.OUT_OF_RANGE,
    "compacted",
    details_pb2.RevisionCompacted(oldest_revision=40, epoch=9),
    reason=details_pb2.REFUSAL_REASON_REVISION_COMPACTED,
)


@FORMS
async def test_watch_of_all_jobs_continues_or_says_that_it_cannot(form: str) -> None:
    """It never begins again by itself: a deletion would be missed."""
    answers = [
        jobs_pb2.WatchJobsResponse(revision=4, jobs=[job_pb2.JobSummary(job_id="p-1")]),
        jobs_pb2.WatchJobsResponse(revision=9, deleted_job_ids=["p-1"]),
    ]
    async with calling(form) as at:
        at.script.answers["WatchJobs"] = [[answers[0], BROKEN], [answers[1], BROKEN], [GAP]]
        with pytest.raises(errors.RevisionCompacted) as caught:
            await at.list("watch_jobs", "p-")
        asked = at.script.requests["WatchJobs"]

    assert (40, 9) == (caught.value.oldest_revision, caught.value.epoch)
    assert [("p-", 0), ("p-", 4), ("p-", 9)] == [
        (one.job_id_prefix, one.after_revision) for one in asked
    ]


@FORMS
async def test_list_of_jobs_passes_its_filters_on(form: str) -> None:
    """To every page."""
    fields: dict[str, Any] = {
        "phases": [job_pb2.JOB_PHASE_CLOSED],
        "outcomes": [job_pb2.OUTCOME_FAILED],
        "order": jobs_pb2.JOB_ORDER_LATEST,
    }
    async with calling(form) as at:
        at.script.answers["ListJobs"] = [jobs_pb2.ListJobsResponse()]
        assert [] == await at.list("list_jobs", prefix="p-", **fields)
        (asked,) = at.script.requests["ListJobs"]

    assert jobs_pb2.ListJobsRequest(job_id_prefix="p-", **fields) == asked
