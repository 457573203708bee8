"""Every field of every client message at its boundary values: check, converters, core, views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Phase
from support.contract.boundaries import variants
from support.contract.rig import NOW_MS, OTHERS, WINDOW_MS, Rig, Stream
from support.contract.samples import (
    JOB,
    full_hello,
    holding_hello,
    ready_hello,
    reports,
    requests,
    session_id,
)

NUMBER_MAX = 2**53
STRANGER = 3


def check_rest(rig: Rig) -> None:
    """Everything can be shown, numbers stay exact, the other job is as before, and beats count."""
    shown = rig.show()
    assert b"\x1b[31m" not in shown
    assert rig.state.epoch < NUMBER_MAX
    assert all(job.round_number < NUMBER_MAX > job.run for job in rig.state.jobs.values())
    assert (1, 0) == rig.other_round() or rig.state.window_until_ms
    assert ["", ""] == [rig.beat(number) for number in OTHERS]


def try_each(sample: Message, send: Callable[[Rig, Any], str], what: str) -> int:
    """Send every variant of a message to a rig; return how many were taken.

    After each of those that reach the core, the job must survive another failure.
    """
    rig, taken = Rig(), 0
    for name, variant in variants(sample):
        before = rig.taken
        taken += not send(rig, variant)
        if rig.taken == before:
            continue
        try:
            go_on(rig)
        except Exception as error:
            raise AssertionError(f"{what}: {name}") from error
        rig = Rig()
    go_on(rig)
    return taken


def go_on(rig: Rig) -> None:
    """Let the job go through another failure, whatever arrived before."""
    rig.obey()
    rig.restart()
    check_rest(rig)


@pytest.mark.parametrize("kind", reports(1))
def test_report(kind: str) -> None:
    """No value of a report ends more than its own stream, and the job continues."""
    sample = Rig().envelope(1, **{kind: reports(1)[kind]})
    stream: Stream = {"session_id": session_id(1), "connection": 1}

    assert try_each(sample, lambda rig, variant: rig.send(variant, stream), kind) > 2


@pytest.mark.parametrize("session", [pytest.param(1, marks=pytest.mark.long), STRANGER])
def test_hello(session: int) -> None:
    """Of a new agent, and of one that reconnects: no value stops the job, or another job."""
    sample = Rig().envelope(session, hello=ready_hello(session))

    assert try_each(sample, lambda rig, variant: rig.send(variant, {}), "hello") > 20


@pytest.mark.parametrize("is_full", [False, pytest.param(True, marks=pytest.mark.long)])
def test_held_round(is_full: bool) -> None:
    """A claim is taken as it is, refused, or found incomplete; no claim breaks an invariant."""
    make = full_hello if is_full else holding_hello
    sample = Rig(in_window=True).envelope(1, hello=make(1, NOW_MS - 1))
    taken = adopted = 0
    for name, variant in variants(sample):
        rig = Rig(in_window=True)
        problem = rig.send(variant, {})
        peer = rig.send(rig.envelope(2, hello=holding_hello(2, NOW_MS - 1)), {})
        taken += not problem
        try:
            rig.advance(WINDOW_MS)
            job = rig.state.jobs.get(JobId(JOB))
            adopted += job is not None and job.phase is Phase.RUNNING
            if not peer:
                go_on(rig)
        except Exception as error:
            raise AssertionError(f"held: {name}") from error

    assert taken > 100
    assert adopted > 50 or is_full


@pytest.mark.parametrize("rpc", requests("node1"))
def test_request(rpc: str) -> None:
    """No value of an operator's request stops the job."""
    assert try_each(requests("node1")[rpc], Rig.ask, rpc) > 0


def test_refusal_names_the_field() -> None:
    sample = Rig().envelope(STRANGER, hello=ready_hello(STRANGER))
    problems = {name: Rig().send(variant, {}) for name, variant in variants(sample)}

    assert (
        "epoch: is more than 1 day ahead of our clock: check both"
        == problems["epoch = 9223372036854775808"]
    )
    assert problems["hello.ready.round = 9007199254740991"].startswith("hello.ready.round: must")
    assert problems["hello.run = 18446744073709551615"].startswith("hello.run: must be 0 to")
    assert problems["hello.labels 0"] == "hello.labels: has an empty key"
    assert problems["hello.spec.lease = 0 s 0 ns"].startswith("hello.spec.lease: must be between")
    assert problems["hello.spec absent"] == "hello.spec: is missing"


def test_sample_messages_are_taken() -> None:
    """Otherwise their variants would prove nothing."""
    stream: Stream = {"session_id": session_id(1), "connection": 1}
    for kind, message in reports(1).items():
        rig = Rig()
        assert "" == rig.send(rig.envelope(1, **{kind: message}), stream), kind
    for rpc, request in requests("node1").items():
        assert "" == Rig().ask(request), rpc
    for make in (full_hello, holding_hello):
        rig = Rig(in_window=True)
        assert "" == rig.send(rig.envelope(1, hello=make(1, NOW_MS - 1)), {})
