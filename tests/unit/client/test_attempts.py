"""What follows a failed attempt, by a clock that the test moves."""

from __future__ import annotations

import re

import grpc
import pytest

from rallypoint.client import errors
from rallypoint.client.attempts import (
    ANSWER_S,
    BACKOFF_S_MAX,
    READ_S_MAX,
    SHARED_S_MAX,
    Attempts,
    Backoff,
    Call,
)
from rallypoint.client.calls import barriers, jobs, keys
from rallypoint.client.failures import Failure
from rallypoint.client.known import RECENT_S, Known
from rallypoint.client.values import Scope
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.wire.durations import to_ms
from rallypoint.wire.errors import Details

BROKEN = Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")
SILENT = Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
EARLY = Failure(grpc.StatusCode.UNAVAILABLE, "not ready", Details(reason="NOT_READY"))
ENDED = Failure(grpc.StatusCode.UNAVAILABLE, "has ended", Details(reason="COORDINATOR_ENDED"))


class Clock:
    """A time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def high(low: float, high: float) -> float:
    """Draw the longest pause."""
    return high


def backoff(clock: Clock, limit_s: float = 30.0) -> Backoff:
    return Backoff(["head:50051"], limit_s, clock, high)


def limit_reached(retry_s: float | None) -> Failure:
    own = details_pb2.LimitReached(limit="watchers", value=4)
    retry_ms = None if retry_s is None else round(retry_s * 1000)
    details = Details(own, "LIMIT_REACHED", retry_ms=retry_ms)
    return Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", details)


def test_pauses_double_up_to_a_bound() -> None:
    """The bound of each pause, of which the jitter takes a part."""
    waits = backoff(Clock())

    assert [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0] == [waits.pause_s(BROKEN) for _ in range(8)]


def test_jitter_is_full() -> None:
    """A pause may be anything from nothing up to the bound."""
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    waits = Backoff(["head:50051"], 30.0, Clock(), draw)

    assert [0.0, 0.0] == [waits.pause_s(BROKEN), waits.pause_s(BROKEN)]
    assert [(0.0, 0.05), (0.0, 0.1)] == drawn


def test_it_gives_up_at_the_limit_of_the_call() -> None:
    """The error says what the last attempt met with, and how long it tried."""
    clock = Clock()
    waits = backoff(clock, 10.0)
    clock.now_s += 10.0 - 0.05
    with pytest.raises(errors.Unavailable) as caught:
        waits.pause_s(BROKEN)

    assert "coordinator at head:50051: Socket closed; gave up after 10 s" == str(caught.value)


def test_deadline_of_the_call_is_final() -> None:
    """That of an attempt is not."""
    clock = Clock()
    waits = backoff(clock)
    assert waits.pause_s(SILENT) > 0
    clock.now_s += 30.0
    with pytest.raises(errors.Unavailable, match="at head:50051 did not answer within 30 s"):
        waits.pause_s(SILENT)


def test_coordinator_says_when_to_try_again() -> None:
    """The pause is never shorter."""
    waits = backoff(Clock())
    retry = Failure(grpc.StatusCode.UNAVAILABLE, "", Details(retry_ms=3_000))

    assert [3.75, 5.0] == [waits.pause_s(retry), waits.pause_s(limit_reached(4.0))]


def test_limit_without_a_time_is_final() -> None:
    """Another attempt would be refused too."""
    with pytest.raises(errors.LimitReached) as caught:
        backoff(Clock()).pause_s(limit_reached(None))

    assert ("watchers", 4, None) == (
        caught.value.limit,
        caught.value.value,
        caught.value.retry_after_s,
    )


def test_limit_that_lasts_longer_than_the_call_is_final() -> None:
    """The caller learns of the limit, and when it may be over."""
    with pytest.raises(errors.LimitReached) as caught:
        backoff(Clock(), 3.0).pause_s(limit_reached(4.0))

    assert 4.0 == caught.value.retry_after_s


@pytest.mark.parametrize(
    "code",
    [
        code
        for code in grpc.StatusCode
        if code
        not in (
            grpc.StatusCode.OK,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
    ],
)
def test_other_statuses_are_final(code: grpc.StatusCode) -> None:
    """Nothing else is tried again."""
    with pytest.raises(errors.RallypointError) as caught:
        backoff(Clock()).pause_s(Failure(code, "no"))

    assert ("no", code.name) == (str(caught.value), caught.value.status)


def arrival(known: Known) -> Call[barrier_pb2.ArriveRequest, barrier_pb2.ArriveResponse]:
    return barriers.arrive(
        known,
        "job",
        "b",
        barrier_pb2.Participant(rank=3),
        expected=None,
        payload=b"",
        scope=Scope.ROUND,
        generation=0,
    )


def test_wait_ends_before_its_attempt() -> None:
    """In every attempt, so that the answer with the names arrives in time."""
    clock = Clock()
    call = arrival(Known(7))
    attempts = Attempts(call, ["head:50051"], 60.0 + ANSWER_S, clock, high)
    assert (62.0, 60_000) == (attempts.prepare(), to_ms(call.request.timeout))
    clock.now_s += 45.0
    attempts.fail(BROKEN)
    assert (17.0, 15_000) == (attempts.prepare(), to_ms(call.request.timeout))
    clock.now_s += 16.5

    assert (0.5, 1) == (attempts.prepare(), to_ms(call.request.timeout))


def test_further_attempt_is_the_same_arrival() -> None:
    """It has the same request id, and the epoch that was known before the first."""
    known = Known(7)
    call = arrival(known)
    attempts = Attempts(call, ["head:50051"], 60.0, Clock(), high)
    attempts.prepare()
    request_id = call.request.request_id
    assert call.request.first_epoch == 0
    assert re.fullmatch(r"[0-9a-f]{16}\.\d+#\d+", request_id), (
        "attempts that come late have an order"
    )
    known.learn_epoch(9, durable=False)  # from another call
    attempts.fail(BROKEN)
    attempts.prepare()

    assert (7, request_id) == (call.request.first_epoch, call.request.request_id)
    assert arrival(known).request.request_id != request_id


@pytest.mark.parametrize(("failure", "epoch"), [(EARLY, 0), (ENDED, 7), (SILENT, 7)])
def test_refusal_that_changed_nothing_is_no_attempt(failure: Failure, epoch: int) -> None:
    """A coordinator that knows no rounds yet has not counted it. Any other end may hide a count."""
    call = arrival(Known(7))
    attempts = Attempts(call, ["head:50051"], 60.0, Clock(), high)
    attempts.prepare()
    attempts.fail(failure)
    attempts.prepare()

    assert epoch == call.request.first_epoch


def test_change_says_what_was_known_before_it() -> None:
    """The latest header of the job, else the epoch of the worker's environment."""
    known = Known(7)
    known.learn_header("other", keys_pb2.KeyValueHeader(epoch=7, revision=99))
    for before in (
        keys_pb2.KeyValueHeader(epoch=7),
        keys_pb2.KeyValueHeader(epoch=7, revision=12),
    ):
        call = keys.add_to_key(known, "job", "k", 1, Scope.RUN)
        attempts = Attempts(call, ["head:50051"], 30.0, Clock(), high)
        attempts.prepare()
        assert not call.request.HasField("known")
        attempts.fail(BROKEN)
        known.learn_header("job", keys_pb2.KeyValueHeader(epoch=7, revision=12))
        attempts.prepare()

        assert before == call.request.known


def test_older_answer_does_not_hide_a_newer_one() -> None:
    """Answers to several threads may be noted in any order; a new epoch counts from 1 again."""
    known = Known(0)
    for epoch, revision in ((7, 5), (7, 3), (9, 1), (7, 6)):
        known.learn_header("job", keys_pb2.KeyValueHeader(epoch=epoch, revision=revision))

    assert keys_pb2.KeyValueHeader(epoch=9, revision=1) == known.header("job")
    assert 9 == known.epoch


def test_repeats_are_exact_while_a_durable_coordinator_remembers() -> None:
    """It forgets no arrival, and hardly ever a change of the last seconds."""
    clock = Clock()
    known = Known(7, clock)

    def exact() -> tuple[bool, bool]:
        change = keys.put_key(known, "job", "k", b"", Scope.ROUND)
        return arrival(known).is_exact, change.is_exact

    found = [exact()]
    known.learn_epoch(7, durable=True)
    found.append(exact())
    known.learn_header("job", keys_pb2.KeyValueHeader(epoch=7, revision=5, durable=True))
    found.append(exact())
    clock.now_s += RECENT_S
    found.append(exact())
    known.learn_epoch(6, durable=False)  # an answer that comes late
    found.append(exact())
    known.learn_epoch(8, durable=False)
    found.append(exact())

    assert found == [
        (False, False),
        (True, False),
        (True, True),
        (True, False),
        (True, False),
        (False, False),
    ]


def test_attempts_to_read_are_short() -> None:
    """A change waits for its answer, because a further attempt might have to be refused."""
    reading = Attempts(
        jobs.get_job("job", job_pb2.JOB_VIEW_FULL), ["head:50051"], 30.0, Clock(), high
    )
    changing = Attempts(
        keys.put_key(Known(0), "job", "k", b"", Scope.ROUND), ["head:50051"], 30.0, Clock(), high
    )

    assert (READ_S_MAX, 30.0) == (reading.prepare(), changing.prepare())
    assert READ_S_MAX > BACKOFF_S_MAX


def shared(clock: Clock, limit_s: float = 30.0) -> Backoff:
    return Backoff(["a:1", "b:1", "c:1"], limit_s, clock, high)


def test_next_coordinator_is_called_without_a_pause() -> None:
    """There is a pause when all have failed; the next sweep begins where this one did."""
    waits = shared(Clock())

    tried = [(waits.target, waits.pause_s(BROKEN)) for _ in range(6)]
    assert [("a:1", 0.0), ("b:1", 0.0), ("c:1", 0.05)] == tried[:3]
    assert [("a:1", 0.0), ("b:1", 0.0), ("c:1", 0.1)] == tried[3:]


def test_pause_that_is_asked_for_is_kept() -> None:
    """The others know as little about a job without an owner."""
    waits = shared(Clock())
    homeless = Failure(
        grpc.StatusCode.UNAVAILABLE, "no owner", Details(reason="NO_OWNER", retry_ms=400)
    )

    assert (0.5, "b:1") == (waits.pause_s(homeless), waits.target)
    assert not homeless.may_have_counted


def test_call_that_a_server_has_cancelled_is_made_again() -> None:
    """It ends; its client has not given up."""
    waits = shared(Clock())

    assert 0.0 == waits.pause_s(Failure(grpc.StatusCode.CANCELLED, "CANCELLED"))
    assert "b:1" == waits.target


def test_refusal_moves_to_no_other_coordinator() -> None:
    """All would refuse it."""
    waits = shared(Clock())
    with pytest.raises(errors.Refused):
        waits.pause_s(Failure(grpc.StatusCode.FAILED_PRECONDITION, "no"))

    assert "a:1" == waits.target


def test_attempts_are_short_with_several_coordinators() -> None:
    """A frozen one costs a moment. After a pause they get longer, for those that are slow."""
    clock = Clock()
    call = keys.put_key(Known(0), "job", "k", b"", Scope.ROUND)
    attempts = Attempts(call, ["a:1", "b:1"], 30.0, clock, high)

    limits = []
    for _ in range(4):
        limits.append(attempts.prepare())
        attempts.fail(SILENT)
    assert [SHARED_S_MAX, SHARED_S_MAX, 2 * SHARED_S_MAX, 2 * SHARED_S_MAX] == limits
    clock.now_s += 27
    assert 1.5 == attempts.prepare()
    clock.now_s += 2.9
    assert [pytest.approx(0.1)] == [attempts.prepare()]


def test_call_that_waits_for_others_is_not_cut_short() -> None:
    """Its coordinator is silent because the others are not there yet; pings notice its death."""
    waiting = keys.get_keys(Known(0), "job", ["k"], Scope.ROUND, waits=True)
    attempts = Attempts(waiting, ["a:1", "b:1"], 30.0, Clock(), high)

    assert 30.0 == attempts.prepare()


def test_outage_names_all_coordinators() -> None:
    """The limit is over while one of them is silent."""
    clock = Clock()
    waits = shared(clock)
    clock.now_s += 30

    with pytest.raises(errors.Unavailable, match=r"no coordinator answered at a:1, b:1, c:1 with"):
        waits.pause_s(SILENT)
