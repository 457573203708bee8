"""Both forms of the client, at a server that answers as the test has written."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest

from rallypoint.client import AsyncClient, Client, Scope, errors, sync_transport
from rallypoint.client.attempts import Method
from rallypoint.client.calls import (
    barriers,
    coordinator,
    events,
    evidence,
    jobs,
    keys,
    operations,
    workers,
)
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import evidence_pb2 as values_pb2
from rallypoint.v1 import evidence_service_pb2 as evidence_pb2
from rallypoint.v1 import job_pb2, node_pb2, scope_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import node_service_pb2 as nodes_pb2
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.wire.errors import pack_status
from rallypoint.wire.limits import SERVICES
from support.clients.scripted import BROKEN, LIMIT_S, calling
from support.core.key_calls import change

FORMS = pytest.mark.parametrize("form", ["sync", "aio"])
HEADER = keys_pb2.KeyValueHeader(epoch=7, revision=4)
NODE = node_pb2.Node(name="n")
RANK = barrier_pb2.Participant(rank=0)
TAKEN = evidence_pb2.TakeEvidenceResponse(evidence=values_pb2.Evidence(round=3))
RESIZED = jobs_pb2.JobUpdate(max_nodes=3)
DRAIN = {"drain_timeout_s": 60.0}
WHY = {"reason": "repaired"}
UPDATE = {"revision": 7, "require_nodes": True, **WHY}
COMPACTED = pack_status(
    grpc.StatusCode.OUT_OF_RANGE,
    "compacted",
    details_pb2.KeysCompacted(oldest_revision=40, epoch=9),
    reason=details_pb2.REFUSAL_REASON_KEYS_COMPACTED,
)
BROKEN_FOR_LONG = pack_status(
    grpc.StatusCode.UNAVAILABLE,
    "Socket closed",
    None,
    reason=details_pb2.REFUSAL_REASON_NOT_READY,
    retry_ms=60_000,
)
ALL_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, Any]] = [
    ("get_coordinator", (), {}, "GetCoordinator", coordinator_pb2.GetCoordinatorResponse()),
    ("get_job", ("j",), {}, "GetJob", jobs_pb2.GetJobResponse()),
    ("create_job", ("j", job_pb2.JobSpec()), {}, "CreateJob", jobs_pb2.CreateJobResponse()),
    (
        "cancel_job",
        ("j",),
        {"run": 2, "give_up_silent_nodes": True},
        "CancelJob",
        jobs_pb2.CancelJobResponse(),
    ),
    ("restart_job", ("j",), {"round": 3}, "RestartJob", jobs_pb2.RestartJobResponse()),
    ("update_job", ("j", RESIZED), UPDATE, "UpdateJob", jobs_pb2.UpdateJobResponse()),
    ("delete_job", ("j",), {}, "DeleteJob", jobs_pb2.DeleteJobResponse()),
    ("drain_node", ("j", "n"), DRAIN, "DrainNode", nodes_pb2.DrainNodeResponse()),
    ("get_node", ("j", "n"), {}, "GetNode", nodes_pb2.GetNodeResponse(node=NODE)),
    ("cordon_node", ("j", "n"), {}, "CordonNode", nodes_pb2.CordonNodeResponse(connected=True)),
    ("uncordon_node", ("j", "n"), WHY, "UncordonNode", nodes_pb2.UncordonNodeResponse()),
    ("report_progress", ("j", 7), {}, "ReportProgress", worker_pb2.ReportProgressResponse(step=9)),
    ("take_evidence", ("j",), {"ranks": [1]}, "TakeEvidence", TAKEN),
    ("get_evidence", ("j",), {}, "GetEvidence", evidence_pb2.GetEvidenceResponse()),
    ("arrive", ("j", "b", RANK), {"timeout_s": 9}, "Arrive", barrier_pb2.ArriveResponse()),
    ("get_keys", ("j", ["k"]), {}, "GetKeys", keys_pb2.GetKeysResponse(header=HEADER)),
    (
        "write_keys",
        ("j", [keys_pb2.KeyWrite(key="k", delete=keys_pb2.KeyWrite.Delete())]),
        {},
        "WriteKeys",
        keys_pb2.WriteKeysResponse(results=[keys_pb2.KeyWritten(was_changed=True)]),
    ),
]
ALL_LISTS: list[tuple[str, tuple[str, ...], str, list[Any], list[Any]]] = [
    (
        "list_jobs",
        (),
        "ListJobs",
        [job_pb2.JobSummary(job_id=name) for name in "abc"],
        [jobs_pb2.ListJobsResponse],
    ),
    (
        "list_runs",
        ("j",),
        "ListRuns",
        [job_pb2.RunSummary(run=run) for run in (3, 2, 1)],
        [jobs_pb2.ListRunsResponse],
    ),
    (
        "list_rounds",
        ("j",),
        "ListRounds",
        [job_pb2.RoundSummary(number=number) for number in (3, 2, 1)],
        [jobs_pb2.ListRoundsResponse],
    ),
    (
        "list_nodes",
        ("j",),
        "ListNodes",
        [node_pb2.Node(name=name) for name in "abc"],
        [nodes_pb2.ListNodesResponse],
    ),
    (
        "list_barriers",
        ("j",),
        "ListBarriers",
        [barrier_pb2.Barrier(name=name) for name in "abc"],
        [barrier_pb2.ListBarriersResponse],
    ),
    (
        "list_events",
        ("j",),
        "ListEvents",
        [events_pb2.Event(sequence=number) for number in (1, 2, 3)],
        [events_pb2.ListEventsResponse],
    ),
    (
        "list_keys",
        ("j",),
        "ListKeys",
        [keys_pb2.KeyValue(key=name) for name in "abc"],
        [keys_pb2.ListKeysResponse],
    ),
]


def test_every_method_is_that_of_the_contract() -> None:
    """With its path and its messages; and every RPC for clients has one."""
    known = {
        f"/{service.full_name}/{method.name}": (method.input_type, method.output_type)
        for service in SERVICES
        for method in service.methods
    }
    methods = [
        value
        for module in (barriers, coordinator, events, evidence, jobs, keys, operations, workers)
        for value in vars(module).values()
        if isinstance(value, Method)
    ]
    ours = {one.path: (one.request.DESCRIPTOR, one.response.DESCRIPTOR) for one in methods}
    known.pop("/rallypoint.v1.AgentService/Session")
    known.pop("/rallypoint.v1.EvidenceService/ReportEvidence")  # of agents, too
    known.pop("/rallypoint.v1.AgentService/Relay")

    assert known == ours


@FORMS
@pytest.mark.parametrize(
    ("name", "args", "fields", "rpc", "answer"), ALL_CALLS, ids=[one[0] for one in ALL_CALLS]
)
async def test_call_is_repeated_until_it_is_answered(
    form: str, name: str, args: tuple[Any, ...], fields: dict[str, Any], rpc: str, answer: Any
) -> None:
    """Each attempt is the same request, with the token; what counts once has one request id."""
    async with calling(form) as at:
        at.script.answers[rpc] = [BROKEN, BROKEN, answer]
        assert answer == await at.call(name, *args, **fields)
        sent = at.script.requests[rpc]
        tokens = [metadata["rallypoint-worker-token"] for metadata in at.script.metadata]

    assert ["secret"] * 3 == tokens
    if "job_id" in sent[0].DESCRIPTOR.fields_by_name:
        assert "j" == sent[0].job_id
    has_id = "request_id" in sent[0].DESCRIPTOR.fields_by_name
    ids = [request.request_id for request in sent if has_id]
    assert ids in ([ids[0]] * 3 if ids else [], [])
    for request in sent:
        for field in ("known", "first_epoch", "timeout"):
            if field in request.DESCRIPTOR.fields_by_name:
                request.ClearField(field)
    assert [sent[0]] * 3 == sent


def written(
    result: keys_pb2.KeyWritten, header: keys_pb2.KeyValueHeader = HEADER
) -> keys_pb2.WriteKeysResponse:
    return keys_pb2.WriteKeysResponse(header=header, results=[result])


@FORMS
@pytest.mark.parametrize(
    ("name", "args", "fields", "write"),
    [
        ("put_key", (b"v",), {}, change("k", put={"value": b"v"})),
        ("add_to_key", (-3,), {}, change("k", add={"amount": -3})),
        (
            "compare_and_set_key",
            (b"v",),
            {"expected": keys_pb2.KeyCondition(mod_revision=0)},
            change("k", compare_and_set={"expected": {"mod_revision": 0}, "value": b"v"}),
        ),
        ("delete_key", (), {}, change("k", delete={})),
    ],
    ids=["put", "add", "compare and set", "delete"],
)
async def test_change_of_one_key_is_one_write(
    form: str, name: str, args: tuple[Any, ...], fields: dict[str, Any], write: keys_pb2.KeyWrite
) -> None:
    """It returns the result of that write."""
    result = keys_pb2.KeyWritten(was_changed=True, revision=4, sum=1)
    async with calling(form) as at:
        at.script.answers["WriteKeys"] = [BROKEN, written(result)]
        assert result == await at.call(name, "j", "k", *args, **fields)
        first, second = at.script.requests["WriteKeys"]

    assert [write] == list(first.writes) == list(second.writes)
    assert first.request_id == second.request_id != ""


@FORMS
async def test_change_says_from_the_second_attempt_what_was_known(form: str) -> None:
    """The header of an earlier answer, whatever call it was to."""
    async with calling(form) as at:
        at.script.answers["GetKeys"] = [keys_pb2.GetKeysResponse(header=HEADER)]
        at.script.answers["WriteKeys"] = [BROKEN, written(keys_pb2.KeyWritten())]
        await at.call("get_keys", "j", ["k"])
        await at.call("add_to_key", "j", "k", 1, scope=Scope.RUN)
        first, second = at.script.requests["WriteKeys"]

    assert (False, True) == (first.HasField("known"), second.HasField("known"))
    assert (HEADER, scope_pb2.SCOPE_RUN) == (second.known, second.scope)


async def test_health_check_precedes_no_change_that_is_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once an answer says that the journal is durable, and until one says that it is not."""
    monkeypatch.setattr(sync_transport, "IDLE_S", -1.0)  # every call finds the channel idle
    durable = keys_pb2.KeyValueHeader(epoch=7, revision=3, durable=True)
    other = keys_pb2.KeyValueHeader(epoch=8, revision=1)
    checks = list[int]()
    async with calling("sync") as at:
        for header in (durable, durable, other, other):
            at.script.answers["WriteKeys"] = [written(keys_pb2.KeyWritten(), header)]
            before = at.script.checks
            await at.call("put_key", "j", "k", b"", scope=Scope.RUN)
            checks.append(at.script.checks - before)

    assert checks == [2, 0, 0, 1]  # the first call of all greets the coordinator, too


@FORMS
async def test_call_ends_at_its_limit(form: str) -> None:
    """However often it is refused until then. The last refusal asks for a pause beyond the limit,
    so that none ends in an attempt that has no answer yet."""
    async with calling(form, limit_s=LIMIT_S) as at:
        at.script.answers["GetJob"] = [BROKEN, BROKEN, BROKEN, BROKEN_FOR_LONG]
        with pytest.raises(
            errors.Unavailable,
            match=r"coordinator at 127\.0\.0\.1:\d+: Socket closed; gave up after 20 s",
        ) as caught:
            await at.call("get_job", "j")

        assert [] == at.script.answers["GetJob"]
    assert caught.value.__context__ is None  # a traceback shows nothing of gRPC


@FORMS
async def test_coordinator_that_cannot_be_reached_is_unavailable(form: str) -> None:
    """No answer at all, and the text says for how long."""
    client: Any = (AsyncClient if form == "aio" else Client)("127.0.0.1:1", limit_s=0.3)
    with pytest.raises(
        errors.Unavailable, match=r"at 127\.0\.0\.1:1 did not answer within 0\.3 s; check"
    ):
        if form == "aio":
            await client.get_job("j")
        else:
            client.get_job("j")
    if form == "aio":
        await client.close()
    else:
        client.close()


@FORMS
@pytest.mark.parametrize(
    ("name", "args", "rpc", "items", "page"), ALL_LISTS, ids=[one[0] for one in ALL_LISTS]
)
async def test_list_reads_every_page_once(
    form: str, name: str, args: tuple[str, ...], rpc: str, items: list[Any], page: list[Any]
) -> None:
    """A page that is lost is read again."""
    async with calling(form) as at:
        field = next(f.name for f in page[0].DESCRIPTOR.fields if f.message_type and f.is_repeated)
        at.script.answers[rpc] = [
            page[0](next_page_token="2", **{field: items[:2]}),
            BROKEN,
            page[0](next_page_token="3"),
            page[0](**{field: items[2:]}),
        ]
        assert items == await at.list(name, *args, page_size=2)
        asked = [(one.page_size, one.page_token) for one in at.script.requests[rpc]]

    assert [(2, ""), (2, "2"), (2, "2"), (2, "3")] == asked


def changes(revision: int, *names: str) -> keys_pb2.WatchKeysResponse:
    """Return an answer with the changes of these keys, the last of which has this revision."""
    first = revision - len(names) + 1
    return keys_pb2.WatchKeysResponse(
        header=keys_pb2.KeyValueHeader(epoch=7, revision=revision),
        events=[
            keys_pb2.KeyEvent(kv=keys_pb2.KeyValue(key=name, mod_revision=first + number))
            for number, name in enumerate(names)
        ],
    )


@FORMS
async def test_watch_continues_after_what_it_has_seen(form: str) -> None:
    """Over three connections, one of which brought no change and one only a new header."""
    async with calling(form) as at:
        at.script.answers["WatchKeys"] = [
            [changes(4), changes(5, "a"), BROKEN],
            BROKEN_AT_ONCE,
            [changes(5), changes(9), BROKEN],
            [changes(9), changes(11, "b", "c")],
        ]
        events = await at.list("watch_keys", "j", "p/")
        asked = [(one.start_revision, one.epoch) for one in at.script.requests["WatchKeys"]]

    assert [("a", 5), ("b", 10), ("c", 11)] == [(e.kv.key, e.kv.mod_revision) for e in events]
    assert [(0, 0), (6, 7), (6, 7), (10, 7)] == asked


BROKEN_AT_ONCE: list[Any] = [BROKEN]


@FORMS
async def test_watch_begins_after_a_header(form: str) -> None:
    """That of a list, for example: nothing between both is missed."""
    async with calling(form) as at:
        at.script.answers["WatchKeys"] = [[changes(4)]]
        assert [] == await at.list("watch_keys", "j", after=HEADER)
        (asked,) = at.script.requests["WatchKeys"]

    assert (5, 7) == (asked.start_revision, asked.epoch)


@FORMS
async def test_gap_in_a_watch_is_an_error(form: str) -> None:
    """A coordinator that does not remember the changes is not asked again."""
    async with calling(form) as at:
        at.script.answers["WatchKeys"] = [[changes(4), changes(5, "a"), BROKEN], [COMPACTED]]
        with pytest.raises(errors.KeysCompacted) as caught:
            await at.list("watch_keys", "j")

    assert (40, 9) == (caught.value.oldest_revision, caught.value.epoch)


@FORMS
async def test_watch_gives_up_after_a_long_outage(form: str) -> None:
    """An answer ends an outage: the limit counts for each."""
    async with calling(form, limit_s=0.3) as at:
        at.script.answers["WatchKeys"] = [[changes(4), BROKEN], *([BROKEN_AT_ONCE] * 100)]
        with pytest.raises(errors.Unavailable, match="gave up"):
            await at.list("watch_keys", "j")


@FORMS
async def test_watched_job_is_sent_again_after_an_interruption(form: str) -> None:
    """Every answer is whole; it ends when the coordinator ends it."""
    states = [jobs_pb2.WatchJobResponse(job=job_pb2.Job(run=number)) for number in range(1, 4)]
    async with calling(form) as at:
        at.script.answers["WatchJob"] = [[states[0], BROKEN], [states[0], states[1], states[2]]]
        seen = [state.job.run for state in await at.list("watch_job", "j")]

    assert [1, 1, 2, 3] == seen


NO_JOB = pack_status(
    grpc.StatusCode.NOT_FOUND,
    "no",
    details_pb2.UnknownJob(job_id="j"),
    reason=details_pb2.REFUSAL_REASON_UNKNOWN_JOB,
)


@FORMS
async def test_watched_job_may_be_absent_after_an_interruption(form: str) -> None:
    """A new coordinator learns of it from its agents. At the beginning it is just not there."""
    states = [jobs_pb2.WatchJobResponse(job=job_pb2.Job(run=number)) for number in (1, 2)]
    async with calling(form) as at:
        at.script.answers["WatchJob"] = [
            [states[0], BROKEN],
            [NO_JOB],
            [NO_JOB],
            [states[1]],
            [NO_JOB],
        ]
        assert states == await at.list("watch_job", "j")
        with pytest.raises(errors.UnknownJob):
            await at.list("watch_job", "j")


@FORMS
async def test_watched_job_that_stays_absent_is_given_up(form: str) -> None:
    """After the limit of one outage."""
    state = jobs_pb2.WatchJobResponse(job=job_pb2.Job(run=1))
    async with calling(form, limit_s=0.3) as at:
        at.script.answers["WatchJob"] = [[state, BROKEN], *([[NO_JOB]] * 100)]
        with pytest.raises(errors.UnknownJob):
            await at.list("watch_job", "j")
        assert len(at.script.requests["WatchJob"]) > 1


async def test_watch_is_closed_from_another_thread() -> None:
    """The thread that waits for a change returns, and so does one that comes later."""
    release = threading.Event()
    async with calling("sync") as at:
        at.script.answers["WatchKeys"] = [[changes(4), release]]
        with at.client.watch_keys("j") as watch:
            waiting = asyncio.create_task(asyncio.to_thread(list, watch))  # noqa: TID251
            await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S):
            seen = await waiting
        release.set()

    assert [] == seen
    assert [] == list(watch)


async def test_closed_client_says_so() -> None:
    """Before the next attempt, and at the next call."""
    async with calling("sync") as at:
        at.client.close()
        with pytest.raises(errors.ClientClosed, match="the client was closed"):
            at.client.get_job("j")
    async with calling("aio") as at:
        await at.client.close()
        with pytest.raises(errors.ClientClosed, match="the client was closed"):
            await at.client.get_job("j")
