"""Lists and watches of jobs: from a revision on, over several runs, and while there is no job."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.agents.envelopes import Envelopes
from rallypoint.server.agents.outbox import Outboxes
from rallypoint.server.api.jobs import jobs_view, lists
from rallypoint.server.api.jobs import service as job_service
from rallypoint.server.contract import pages, times, waiting
from rallypoint.server.contract.verdict import verdict_message
from rallypoint.server.contract.waiting import (
    EXPLAINED_MS,
    NODES_PER_EXPLAINED_MS,
    Explanations,
)
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import RUNS_MAX
from rallypoint.server.core.model.node import Eligibility
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.state import revisions
from rallypoint.server.core.state.clocks import DISTANCES_MAX, DRIFT_MS_MAX, Clocks
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2, round_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import node_service_pb2 as node_service
from rallypoint.wire.errors import unpack_detail
from support.clients.reading import Reader, Watch, run_once, succeed
from support.core.coordinator import Bench
from support.core.fake_agents import worker_exit
from support.core.served import LIMIT_S, Served, served

# --- Lists of jobs, runs and rounds, and a single node ---

LATEST = service_pb2.JOB_ORDER_LATEST


async def three_jobs(server: Served) -> Reader:
    """Return a reader of a job that has succeeded, and two others that run."""
    await run_once(server, "b-done", 1)
    await server.join("c-runs", 2)
    await server.join("a-runs", 3)
    return Reader(server)


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, ["a-runs", "b-done", "c-runs"]),
        ({"order": LATEST}, ["a-runs", "c-runs", "b-done"]),
        ({"job_id_prefix": "b"}, ["b-done"]),
        ({"phases": [job_pb2.JOB_PHASE_RUNNING]}, ["a-runs", "c-runs"]),
        ({"phases": [job_pb2.JOB_PHASE_RUNNING, job_pb2.JOB_PHASE_CLOSED], "order": LATEST},
         ["a-runs", "c-runs", "b-done"]),
        ({"outcomes": [job_pb2.OUTCOME_SUCCEEDED]}, ["b-done"]),
        ({"outcomes": [job_pb2.OUTCOME_OPEN], "job_id_prefix": "a"}, ["a-runs"]),
        ({"outcomes": [job_pb2.OUTCOME_FAILED]}, []),
    ],
)  # fmt: skip
async def test_jobs_are_filtered_and_ordered(fields: dict[str, Any], ids: list[str]) -> None:
    """In one page or in several; each page counts all that match."""
    async with served() as server:
        reader = await three_jobs(server)
        whole = await reader.list(**fields)
        found, token = [], ""
        while True:
            page = await reader.list(page_size=1, page_token=token, **fields)
            assert len(ids) == page.job_count
            found += [job.job_id for job in page.jobs]
            token = page.next_page_token
            if not token:
                break

    assert (ids, ids) == ([job.job_id for job in whole.jobs], found)
    assert (len(ids), "") == (whole.job_count, whole.next_page_token)


async def test_page_is_at_most_a_thousand_jobs_long() -> None:
    """A larger size is no mistake."""
    async with served() as server:
        await server.join("job", 1)

        assert 1 == len((await Reader(server).list(page_size=100_000)).jobs)


async def test_token_of_another_order_is_refused() -> None:
    """The next page would leave jobs out."""
    async with served() as server:
        reader = await three_jobs(server)
        first = await reader.list(page_size=1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reader.list(page_token=first.next_page_token, order=LATEST)

    assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()


async def test_earlier_runs_and_their_rounds_stay() -> None:
    """The job shows its latest run; lists show all, the latest first, with times of day."""
    async with served() as server:
        await run_once(server, "job", 1)
        await run_once(server, "job", 2)
        await server.join("job", 3)
        reader = Reader(server)
        job = await reader.get("job")
        runs = (await reader.jobs.ListRuns(service_pb2.ListRunsRequest(job_id="job"))).runs
        rounds = (await reader.jobs.ListRounds(service_pb2.ListRoundsRequest(job_id="job"))).rounds

    open_, closed = job_pb2.OUTCOME_OPEN, job_pb2.OUTCOME_SUCCEEDED
    assert (3, 0) == (job.run, len(job.history))
    assert [(3, 3, open_), (2, 2, closed), (1, 1, closed)] == [
        (run.run, run.round, run.outcome) for run in runs
    ]
    assert [(2, 2), (1, 1)] == [(one.run, one.number) for one in rounds]
    assert {round_pb2.ROUND_REASON_SUCCEEDED} == {one.end_reason for one in rounds}
    assert not runs[0].HasField("closed_at") and runs[1].HasField("closed_at")
    for run, one in zip(runs[1:], rounds, strict=True):
        lasted_ms = run.closed_at.ToMilliseconds() - run.opened_at.ToMilliseconds()
        assert lasted_ms == run.lasted_for.ToMilliseconds()
        assert run.opened_at.ToMilliseconds() <= one.began_at.ToMilliseconds()
        assert one.ended_at.ToMilliseconds() == run.closed_at.ToMilliseconds()


async def test_rounds_of_one_run_in_pages() -> None:
    """A token is valid for the page after it, whatever happens meanwhile."""
    async with served() as server:
        for number in range(1, 4):
            await run_once(server, "job", number)
        jobs, ask = Reader(server).jobs, service_pb2.ListRoundsRequest
        only = await jobs.ListRounds(ask(job_id="job", run=2))
        first = await jobs.ListRounds(ask(job_id="job", page_size=2))
        await run_once(server, "job", 4)
        rest = await jobs.ListRounds(ask(job_id="job", page_token=first.next_page_token))
        runs = await jobs.ListRuns(service_pb2.ListRunsRequest(job_id="job", page_size=3))
        last = await jobs.ListRuns(
            service_pb2.ListRunsRequest(job_id="job", page_token=runs.next_page_token)
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await jobs.ListRounds(ask(job_id="job", page_token="x"))

    assert [2] == [one.number for one in only.rounds]
    assert [3, 2] == [one.number for one in first.rounds]
    assert ([1], "") == ([one.number for one in rest.rounds], rest.next_page_token)
    assert [4, 3, 2, 1] == [run.run for run in (*runs.runs, *last.runs)]
    assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()


async def test_only_the_latest_runs_are_remembered() -> None:
    """With that which is open."""
    async with served() as server:
        for number in range(1, RUNS_MAX + 3):
            await run_once(server, "job", number)
        answer = await Reader(server).jobs.ListRuns(service_pb2.ListRunsRequest(job_id="job"))

    assert list(range(RUNS_MAX + 2, 2, -1)) == [run.run for run in answer.runs]


async def test_one_node_is_shown_as_in_the_list() -> None:
    """An unknown one is NOT_FOUND; the detail says whether its job is."""
    async with served() as server:
        await server.join("job", 1)
        nodes = Reader(server).nodes
        one = await nodes.GetNode(node_service.GetNodeRequest(job_id="job", node_name="n1"))
        listed = await nodes.ListNodes(node_service.ListNodesRequest(job_id="job"))
        refused = []
        for job_id in ("job", "other"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                request = node_service.GetNodeRequest(job_id=job_id, node_name="n2")
                await nodes.GetNode(request)
            detail = unpack_detail(tuple(caught.value.trailing_metadata()))
            refused.append((caught.value.code(), type(detail).__name__))

    one.node.ClearField("silent_for")
    listed.nodes[0].ClearField("silent_for")
    assert list(listed.nodes) == [one.node]
    not_found = grpc.StatusCode.NOT_FOUND
    assert [(not_found, "UnknownNode"), (not_found, "UnknownJob")] == refused


async def test_departures_say_how_a_node_went() -> None:
    """A node that leaves after the end of its run has finished; the times of its run are known."""
    async with served() as server:
        await run_once(server, "job", 1)
        job = await Reader(server).get("job")

    (departure,) = job.departures
    assert job_pb2.DEPARTURE_KIND_FINISHED == departure.kind
    assert departure.departed_at.ToMilliseconds() >= job.closed_at.ToMilliseconds()
    assert (1_000, 60_000) == (job.heartbeat_interval.ToMilliseconds(), job.lease.ToMilliseconds())


# --- Watches of one job: from a revision on, over several runs, and while there is no job ---

SUMMARY = job_pb2.JOB_VIEW_SUMMARY


async def read_until_closed(watch: Watch) -> list[int]:
    """Return the revisions up to the end of a run that every node knows."""
    revisions: list[int] = []
    while True:
        answer = await watch.next()
        revisions.append(answer.revision)
        summary = answer.summary
        if summary.phase == job_pb2.JOB_PHASE_CLOSED and not summary.node_count:
            return revisions


async def test_watch_begins_after_the_revision_that_is_known() -> None:
    """What was seen is not sent again; without a revision it is sent at once."""
    async with served() as server:
        await server.join("job", 1)
        reader = Reader(server)
        known = (await reader.get("job")).revision
        async with (
            reader.watch("job", view=SUMMARY) as first,
            reader.watch("job", view=SUMMARY, after_revision=known) as later,
            reader.watch("job", view=SUMMARY, after_revision=known - 1) as late,
        ):
            assert known == (await first.next()).revision == (await late.next()).revision
            await reader.change("job")
            answers = [await watch.next() for watch in (first, later, late)]

    assert len({answer.revision for answer in answers}) == 1
    assert answers[0].revision == answers[0].summary.revision > known


async def test_watch_after_a_revision_that_is_ahead_begins_at_once() -> None:
    """It is one of a coordinator whose clock was ahead: nothing here would ever be newer."""
    async with served() as server:
        await server.join("job", 1)
        reader = Reader(server)
        known = (await reader.get("job")).revision
        async with reader.watch("job", after_revision=known + 10**9) as watch:
            assert known == (await watch.next()).revision


async def test_watch_across_runs_misses_nothing() -> None:
    """A job that comes, ends, runs again, and is deleted: each revision comes once, ascending."""
    async with served() as server:
        reader = Reader(server)
        async with reader.watch("job", view=SUMMARY, across_runs=True) as watch:
            before = await watch.next()
            agent = await server.join("job", 1)
            await succeed(agent)
            first = await read_until_closed(watch)
            await run_once(server, "job", 2)
            second = await read_until_closed(watch)
            await reader.delete("job")
            after = await watch.next()
            await server.join("job", 3)
            again = await watch.next()

    assert before.missing and after.missing and not after.HasField("summary")
    assert (3, False) == (again.summary.run, again.missing)  # no number is used again
    seen = [before.revision, *first, *second, after.revision, again.revision]
    assert seen == sorted(set(seen))


async def test_watch_of_one_run_ends_with_it() -> None:
    """Also when its end is all that the client has seen."""
    async with served() as server:
        await run_once(server, "job", 1)
        reader = Reader(server)
        known = (await reader.get("job")).revision
        async with reader.watch("job") as watch, reader.watch("job", after_revision=known) as late:
            assert known == (await watch.next()).revision

            assert await watch.next() is grpc.aio.EOF
            assert await late.next() is grpc.aio.EOF


async def test_watch_of_one_run_does_not_follow_the_next() -> None:
    """Also when the end of the run was merged with the beginning of the next one."""
    async with served() as server:
        reader = Reader(server)
        spec = job_pb2.JobSpec(min_nodes=1, max_nodes=1)
        await reader.jobs.CreateJob(service_pb2.CreateJobRequest(job_id="job", spec=spec))
        async with reader.watch("job", view=SUMMARY) as watch:
            runs = [(await watch.next()).summary.run]
            await reader.jobs.CancelJob(service_pb2.CancelJobRequest(job_id="job"))
            await reader.jobs.CreateJob(service_pb2.CreateJobRequest(job_id="job", spec=spec))
            while (answer := await watch.next()) is not grpc.aio.EOF:
                runs.append(answer.summary.run)

    assert {1} == set(runs)


async def test_deletion_that_is_known_is_not_sent_again() -> None:
    """A client that was away meanwhile learns of it."""
    async with served() as server:
        await run_once(server, "job", 1)
        reader = Reader(server)
        seen = (await reader.get("job")).revision
        await reader.delete("job")
        async with reader.watch("job", across_runs=True, after_revision=seen) as watch:
            gone = await watch.next()
        async with reader.watch("job", across_runs=True, after_revision=gone.revision) as watch:
            await server.join("job", 2)
            back = await watch.next()

    assert gone.missing and gone.revision == seen + 1
    assert back.job.run == 2 and not back.missing


async def test_new_coordinator_calls_no_job_missing_before_it_has_listened() -> None:
    """The agents of its jobs need a moment to find it."""
    window_ms = 300
    async with served(Timing(window_ms=window_ms)) as server:
        began_s = time.monotonic()
        async with (
            asyncio.timeout(LIMIT_S),
            Reader(server).watch("job", across_runs=True) as watch,
        ):
            answer = await watch.next()

    assert answer.missing
    assert time.monotonic() - began_s >= 0.6 * window_ms / 1000


@pytest.mark.parametrize("after", [0, 1])
async def test_watch_of_one_run_needs_a_job(after: int) -> None:
    """As before: NOT_FOUND."""
    async with served() as server, Reader(server).watch("job", after_revision=after) as watch:
        assert grpc.StatusCode.NOT_FOUND is (await watch.ending()).code()


# --- The watch of all jobs: what has changed since a revision, then every change ---


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
    genuine = lists.show_summary

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


# --- Times of day, for people ---

NOON_MS = 1_800_000_000_000


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """What a coordinator measures; it is noon, and nothing was measured yet."""
    monkeypatch.setattr(times, "wall_ms", lambda: NOON_MS)
    return Clocks()


def shown(at_ms: int, clocks: Clocks, now_ms: int) -> int:
    """Return the shown time in ms."""
    time = times.to_timestamp(at_ms, clocks, now_ms)
    assert time is not None
    return time.ToMilliseconds()


def test_event_is_shown_as_long_ago_as_it_was(clocks: Clocks) -> None:
    """By the wall clock of now."""
    assert NOON_MS - 250 == shown(750, clocks, 1_000)
    assert times.to_timestamp(None, clocks, 1_000) is None


def test_shown_time_does_not_change_by_itself(clocks: Clocks) -> None:
    """An answer takes a while to write; the same event keeps its time."""
    clocks.measure(1_000, NOON_MS)
    first = shown(750, clocks, 1_000)
    clocks.measure(3_000, NOON_MS + 2_000 + DRIFT_MS_MAX)

    assert first == shown(750, clocks, 3_000) == NOON_MS - 250


def test_what_was_before_a_stall_keeps_its_time(clocks: Clocks) -> None:
    """Journal time leaves a stall out; only what happens afterwards is later by it."""
    clocks.measure(1_000, NOON_MS)
    before, later_ms = shown(750, clocks, 1_000), NOON_MS + 3_601_000
    clocks.measure(2_000, later_ms)  # an hour and a second; journal time sees the second

    assert before == shown(750, clocks, 2_000)
    assert later_ms == shown(2_000, clocks, 2_000)


def test_clock_that_was_set_counts(clocks: Clocks) -> None:
    """So does a stall, which journal time leaves out."""
    clocks.measure(1_000, NOON_MS)
    first = shown(750, clocks, 1_000)
    clocks.measure(1_000, NOON_MS + 60_000)

    assert first + 60_000 == shown(750, clocks, 1_000)


def test_clock_that_was_set_back_at_once_leaves_nothing(clocks: Clocks) -> None:
    """A replay of the records leads to the same distances, whatever was measured in a moment."""
    clocks.measure(1_000, NOON_MS)
    clocks.measure(2_000, NOON_MS + 60_000)
    clocks.measure(2_000, NOON_MS + 1_000 + DRIFT_MS_MAX // 2)
    replayed = Clocks()
    for record in clocks.records():
        replayed.take(record)

    assert [1_000] == clocks.since_ms
    assert clocks == replayed


def test_oldest_distances_are_dropped(clocks: Clocks) -> None:
    """Before the oldest one that is left, it holds too."""
    for number in range(DISTANCES_MAX + 2):
        clocks.measure(number, NOON_MS + number * 10_000)

    assert DISTANCES_MAX == len(clocks.records())
    assert clocks.find(2) == clocks.find(0) == NOON_MS + 20_000 - 2


# --- Groups of failures, for programs: the exit code or the signal that their workers share ---


def test_group_has_the_exit_code_or_the_signal() -> None:
    """One of the two; the text is for people."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=1))
    a, b = bench.run_round("a", "b", workers=2)
    a.fail(worker_exit(7), worker_exit(7, local_rank=1))
    b.fail(worker_exit(signal=9))
    bench.obey()
    groups = verdict_message(bench.the_verdict(), bench.now_ms).groups

    code, signal = groups
    assert ("exit code 7", 7, False) == (code.exit_text, code.exit_code, code.HasField("signal"))
    assert ("signal 9 (SIGKILL)", 9) == (signal.exit_text, signal.signal)
    assert not signal.HasField("exit_code")


# --- What a job waits for is explained once for all its nodes, and for a moment ---


def make(nodes: int, wanted: int) -> tuple[Bench, Envelopes]:
    """Return a job that waits for `wanted` nodes, and has `nodes`."""
    bench = Bench(JobSpec(min_nodes=wanted, max_nodes=wanted))
    bench.join(*(f"n{number}" for number in range(nodes)))
    return bench, Envelopes(Outboxes(), bench.state, WorkerTokens("c"))


def test_explanation_is_reused_for_the_other_nodes() -> None:
    """Up to its end, and not at it."""
    bench, envelopes = make(2, 3)
    first, second = bench.state.nodes
    assert envelopes.explained(second, bench.now_ms) is None

    explained = envelopes.explain(first, bench.now_ms)

    assert explained is not None
    last_ms = bench.now_ms + EXPLAINED_MS - 1
    assert (bench.now_ms, explained) == envelopes.explained(second, last_ms)
    assert envelopes.explained(second, last_ms + 1) is None


def test_large_job_is_explained_less_often() -> None:
    """By one ms for so many nodes."""
    bench, envelopes = make(2 * NODES_PER_EXPLAINED_MS, 99)
    session = next(iter(bench.state.nodes))
    envelopes.explain(session, bench.now_ms)

    last_ms = bench.now_ms + EXPLAINED_MS + 1

    assert envelopes.explained(session, last_ms) is not None
    assert envelopes.explained(session, last_ms + 1) is None


def test_node_that_is_kept_out_has_its_own() -> None:
    """Its health may be why it waits, whatever the others wait for."""
    bench, envelopes = make(2, 3)
    first, second = bench.state.nodes
    envelopes.explain(first, bench.now_ms)

    node = bench.state.nodes[second]
    bench.state.nodes[second] = type(node)(
        node.identity,
        node.name,
        arrival=node.arrival,
        connection=1,
        eligibility=Eligibility.QUARANTINED,
    )

    assert envelopes.explained(first, bench.now_ms) is not None
    assert envelopes.explained(second, bench.now_ms) is None
    assert envelopes.explained("unknown", bench.now_ms) is None  # type: ignore[arg-type]


def test_explanations_of_other_jobs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is explained again needs no more room, also when there are as many as can be."""
    monkeypatch.setattr(waiting, "JOBS_MAX", 2)
    known, benches = Explanations(), [make(1, 2)[0], make(1, 2)[0], make(1, 2)[0]]
    jobs = [replace(bench.job(), job_id=JobId(f"{n}")) for n, bench in enumerate(benches)]

    def find() -> list[bool]:
        found = (
            known.find(bench.state, job.job_id, 0) for bench, job in zip(benches, jobs, strict=True)
        )
        return [one is not None for one in found]

    for number in (0, 1, 0):
        known.renew(benches[number].state, jobs[number], 0)
    assert [True, True, False] == find()
    known.renew(benches[2].state, jobs[2], 0)

    assert [False, False, True] == find()
