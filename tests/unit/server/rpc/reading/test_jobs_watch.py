"""The watch of all jobs: what has changed since a revision, then every change."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from rallypoint.server.core.state import revisions
from rallypoint.server.rpc import job_service
from rallypoint.server.rpc.guards import limits
from rallypoint.server.rpc.reading import jobs, jobs_view, pages
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.wire.errors import unpack_detail
from support.clients.reading import Reader, Watch, run_once
from support.core.served import LIMIT_S, served


def ids(answer: Any) -> list[str]:
    """Return the jobs of an answer, whose revisions must ascend."""
    given = [job.revision for job in answer.jobs]
    assert given == sorted(set(given)) and all(one <= answer.revision for one in given)
    return [job.job_id for job in answer.jobs]


async def follow(watch: Watch, revision: int) -> tuple[dict[str, int], list[str], list[int]]:
    """Read up to a revision; return the jobs, the deleted ids, and all revisions in order."""
    jobs: dict[str, int] = {}
    deleted: list[str] = []
    seen: list[int] = []
    while not seen or seen[-1] < revision:
        answer = await watch.next()
        seen += [job.revision for job in answer.jobs]
        for job in answer.jobs:
            jobs[job.job_id] = job.revision
        for job_id in answer.deleted_job_ids:
            jobs.pop(job_id, None)
        deleted += answer.deleted_job_ids
        if answer.revision >= revision:
            break
    return jobs, deleted, seen


def hold_interval(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let the interval after the first message last until the event is set."""
    ends = asyncio.Event()
    update = jobs_view.JobsView.update

    async def wait(view: jobs_view.JobsView, prefix: str = "", after: int | None = None) -> None:
        if after is None:
            await ends.wait()
        await update(view, prefix, after)

    monkeypatch.setattr(jobs_view.JobsView, "update", wait)
    return ends


async def test_watch_begins_with_every_job() -> None:
    """In the order of their revisions; then come changes, each once."""
    async with served() as server:
        for number, job_id in enumerate("cab", 1):
            await server.join(job_id, number)
        reader = Reader(server)
        async with reader.watch_all() as watch:
            first = await watch.next()
            await reader.change("a")
            second = await watch.next()
            await reader.change("c")
            third = await watch.next()

    assert [["c", "a", "b"], ["a"], ["c"]] == [ids(answer) for answer in (first, second, third)]
    assert first.revision < second.revision < third.revision


async def test_watch_continues_from_a_list_without_a_gap() -> None:
    """What changed, came or went between both is sent, and nothing else."""
    async with served() as server:
        for number, job_id in enumerate(("gone", "same", "changed"), 1):
            await run_once(server, job_id, number)
        reader = Reader(server)
        listed = await reader.list()
        await reader.delete("gone")
        await reader.change("changed")
        await server.join("new", 4)
        async with reader.watch_all(listed.revision) as watch:
            answer = await watch.next()
        async with reader.watch_all(answer.revision) as watch:
            idle = await watch.next()
            await reader.change("new")
            later = await watch.next()

    assert (["changed", "new"], ["gone"]) == (ids(answer), list(answer.deleted_job_ids))
    assert ([], [], answer.revision) == (ids(idle), list(idle.deleted_job_ids), idle.revision)
    assert ["new"] == ids(later)


async def test_job_that_exists_again_is_not_deleted() -> None:
    """A watcher that was away sees it as changed."""
    async with served() as server:
        await run_once(server, "job", 1)
        reader = Reader(server)
        listed = await reader.list()
        await reader.delete("job")
        await server.join("job", 2)
        async with reader.watch_all(listed.revision) as watch:
            answer = await watch.next()

    assert (["job"], []) == (ids(answer), list(answer.deleted_job_ids))


async def test_watch_with_a_prefix_sees_only_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then it learns the latest revision although none of them has changed."""
    monkeypatch.setattr(job_service, "PROGRESS_S", 0.0)
    async with served() as server:
        await run_once(server, "a-1", 1)
        await run_once(server, "b-1", 2)
        reader = Reader(server)
        async with reader.watch_all(prefix="a-") as watch:
            first = await watch.next()
            await reader.delete("b-1")
            progress = await watch.next()
            await reader.delete("a-1")
            gone = await watch.next()

    assert ["a-1"] == ids(first)
    assert ([], [], True) == (
        ids(progress), list(progress.deleted_job_ids), progress.revision > first.revision
    )  # fmt: skip
    assert ["a-1"] == list(gone.deleted_job_ids)


async def refused(reader: Reader, after: int) -> details_pb2.RevisionCompacted:
    """Return why a watch after a revision is refused."""
    async with reader.watch_all(after) as watch:
        error = await watch.ending()
    assert grpc.StatusCode.OUT_OF_RANGE is error.code()
    detail = unpack_detail(tuple(error.trailing_metadata() or ()))
    assert isinstance(detail, details_pb2.RevisionCompacted)
    return detail


async def test_gap_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """When deletions are not remembered, or the revision is another coordinator's."""
    monkeypatch.setattr(revisions, "DELETIONS_MAX", 1)
    async with served() as server:
        reader = Reader(server)
        for number, job_id in enumerate("abc", 1):
            await run_once(server, job_id, number)
        before = (await reader.list()).revision
        earlier = await refused(reader, 4_711)
        for job_id in "ab":
            await reader.delete(job_id)
        latest = (await reader.list()).revision
        missed = await refused(reader, before)
        ahead = await refused(reader, latest + 10**9)
        async with reader.watch_all(missed.oldest_revision) as watch:
            rest = await watch.next()

    assert earlier.epoch * revisions.PER_EPOCH == earlier.oldest_revision <= before
    assert before < missed.oldest_revision == ahead.oldest_revision < latest
    assert ["b"] == list(rest.deleted_job_ids)


async def test_slow_watcher_learns_that_it_missed_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deletions are forgotten while its next message waits."""
    monkeypatch.setattr(revisions, "DELETIONS_MAX", 1)
    interval_ends = hold_interval(monkeypatch)
    async with served() as server:
        reader = Reader(server)
        for number, job_id in enumerate("abc", 1):
            await run_once(server, job_id, number)
        async with reader.watch_all() as watch:
            await watch.next()
            for job_id in "abc":
                await reader.delete(job_id)
            interval_ends.set()

            assert grpc.StatusCode.OUT_OF_RANGE is (await watch.ending()).code()


async def test_changes_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within an interval, each job is sent once, as it is at its end."""
    interval_ends = hold_interval(monkeypatch)
    async with served() as server:
        await server.join("a", 1)
        await server.join("b", 2)
        reader = Reader(server)
        async with reader.watch_all() as watch:
            await watch.next()
            for _ in range(5):
                for job_id in "ab":
                    await reader.change(job_id)
            latest = (await reader.list()).revision
            interval_ends.set()
            jobs, _, seen = await follow(watch, latest)

    assert {"a": latest - 1, "b": latest} == jobs
    assert [latest - 1, latest] == seen


async def test_many_jobs_come_in_messages_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Together they are all jobs, once; each message says how far it goes."""
    monkeypatch.setattr(pages, "PAGE_BYTES_MAX", 500)
    async with served() as server:
        for number in range(1, 13):
            await server.join(f"job-{number:02}", number)
        reader = Reader(server)
        listed = await reader.list()
        async with reader.watch_all() as watch:
            answers = [await watch.next()]
            while answers[-1].revision < listed.revision:
                answers.append(await watch.next())

    assert len(answers) > 2 and max(answer.ByteSize() for answer in answers) <= 520
    assert [f"job-{number:02}" for number in range(1, 13)] == [
        one for answer in answers for one in ids(answer)
    ]


async def test_change_is_rendered_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many watch. A newcomer gets times that are not old."""
    rendered: list[str] = []
    genuine = jobs.show_summary

    def show(state: Any, job: Any, *rest: Any) -> Any:
        rendered.append(job.job_id)
        return genuine(state, job, *rest)

    monkeypatch.setattr(jobs_view, "show_summary", show)
    async with served() as server:
        await server.join("a", 1)
        await server.join("b", 2)
        reader = Reader(server)
        calls = [reader.jobs.WatchJobs(service_pb2.WatchJobsRequest()) for _ in range(20)]
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(call.read() for call in calls))
            begun = list(rendered)
            await reader.change("a")
            answers = await asyncio.gather(*(call.read() for call in calls))
            changed = rendered[len(begun) :]
            monkeypatch.setattr(jobs_view, "AGE_S_MAX", 0.0)
            async with reader.watch_all() as newcomer:
                await newcomer.next()
        for call in calls:
            call.cancel()

    assert (["a", "b"], ["a"]) == (sorted(begun), changed)
    assert {("a",)} == {tuple(ids(answer)) for answer in answers}
    assert ["a", "b"] == sorted(rendered[len(begun) + 1 :])


@pytest.mark.parametrize(
    ("limit", "kind"),
    [
        ("JOBS_WATCHERS_MAX", details_pb2.LIMIT_KIND_WATCHES),
        ("WATCHERS_PER_HOST_MAX", details_pb2.LIMIT_KIND_WATCHES_PER_HOST),
    ],
)
async def test_limits_of_watches(
    monkeypatch: pytest.MonkeyPatch, limit: str, kind: details_pb2.LimitKind.ValueType
) -> None:
    """One too many is refused; one that ends makes room."""
    monkeypatch.setattr(limits, limit, 1)
    async with served() as server:
        reader = Reader(server)
        async with reader.watch_all() as first:
            await first.next()
            async with reader.watch_all() as second:
                error = await second.ending()
            first.call.cancel()
            async with asyncio.timeout(LIMIT_S):
                while True:
                    async with reader.watch_all() as third:
                        try:
                            assert await third.next()
                            break
                        except grpc.aio.AioRpcError as still:
                            assert grpc.StatusCode.RESOURCE_EXHAUSTED is still.code()

    detail = unpack_detail(tuple(error.trailing_metadata() or ()))
    assert isinstance(detail, details_pb2.LimitReached)
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED, kind) == (error.code(), detail.kind)
