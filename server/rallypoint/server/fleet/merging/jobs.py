"""Lists and watches of the jobs of all shards."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.server.api.jobs.lists import JobList, Place
from rallypoint.server.api.jobs.requests import to_job_list
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import CallRefused, Context
from rallypoint.server.contract.errors import refusal_status
from rallypoint.server.contract.pages import Room, to_page
from rallypoint.server.contract.routes import Route
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.fleet.merging.parts import (
    ShardCalls,
    Take,
    read_position,
    write_position,
)
from rallypoint.v1 import job_pb2, job_service_pb2
from rallypoint.wire.durations import to_unix_ms


async def list_jobs(
    parts: ShardCalls, route: Route, request: job_service_pb2.ListJobsRequest, context: Context
) -> job_service_pb2.ListJobsResponse:
    """Return a page of the jobs of all shards.

    A token names the place of the last job of its page. All shards order their jobs alike, so the
    same token says to each where the next page begins.

    Raises:
        InvalidMessage: when the request breaks the contract.
        CallRefused: when a shard does not answer.
    """
    size, token = to_page(request)
    wanted = to_job_list(request)
    wanted.read_token(token)
    pages = await parts.ask_all(route, [request] * parts.count, context)
    return merge_pages(pages, wanted, size)


def merge_pages(
    pages: Sequence[job_service_pb2.ListJobsResponse], wanted: JobList, size: int
) -> job_service_pb2.ListJobsResponse:
    """Return what fits into a page. Behind the end of a page that has a next one, jobs may lack."""
    merged = job_service_pb2.ListJobsResponse(
        job_count=sum(page.job_count for page in pages),
        position=write_position([page.revision for page in pages]),
    )
    ends = [_place(wanted, page.jobs[-1]) for page in pages if page.next_page_token]
    entries = sorted(
        ((_place(wanted, job), job) for page in pages for job in page.jobs),
        key=lambda entry: entry[0],
    )
    room, last = Room(size=size), None
    for place, job in entries:
        if not room.take(job.ByteSize()) or (ends and place > min(ends)):
            break
        merged.jobs.append(job)
        last = place
    if last is not None and (ends or len(merged.jobs) < len(entries)):
        merged.next_page_token = wanted.write_token(last)
    return merged


def _place(wanted: JobList, job: job_pb2.JobSummary) -> Place:
    return (-to_unix_ms(job.opened_at) if wanted.latest_first else 0), job.job_id


async def watch_jobs(
    parts: ShardCalls,
    route: Route,
    request: job_service_pb2.WatchJobsRequest,
    context: Context,
    write: Take,
) -> None:
    """Write the changed jobs of all shards, until the call ends.

    Raises:
        InvalidMessage: when the request breaks the contract.
        CallRefused: when a shard answers no more, or deletions are not remembered.
    """
    check(request)
    position = read_position(request.after_position, parts.count, "after_position")
    if request.after_revision:
        facts = (("oldest_revision", 0), ("epoch", 0))
        raise CallRefused(refusal_status(Refusal(RefusalKind.REVISION_COMPACTED, facts)))
    prefix = request.job_id_prefix
    requests = [
        job_service_pb2.WatchJobsRequest(after_revision=revision, job_id_prefix=prefix)
        for revision in position
    ]

    async def take(shard: int, answer: job_service_pb2.WatchJobsResponse) -> None:
        position[shard] = answer.revision
        answer.revision = 0
        answer.position = write_position(position)
        await write(shard, answer)

    await parts.watch_all(route, requests, context, take)
