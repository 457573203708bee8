"""Whatever a client sends: it is refused as invalid, or the core takes it and its jobs continue.

First every field of every message has its boundary values, one at a time; then hypothesis draws
histories of valid, changed and misplaced messages. Everything is checked, converted, stepped and
shown, but the coordinator here has no network. It has a job of two nodes that runs a round, and
another job that must never notice anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st

from rallypoint.server.agents import hello
from rallypoint.server.agents import reports as report_messages
from rallypoint.server.agents.desired import desired_message, notices_message
from rallypoint.server.agents.hello import UnsupportedProtocol, to_hello
from rallypoint.server.agents.reports import to_heartbeat, to_report
from rallypoint.server.api.barriers.messages import to_arrive
from rallypoint.server.api.events.views import event_message
from rallypoint.server.api.jobs.job import summary_message
from rallypoint.server.api.jobs.picture import job_message
from rallypoint.server.api.jobs.requests import (
    CANCEL,
    RESTART,
    to_create,
    to_update,
)
from rallypoint.server.api.keys.messages import to_writes
from rallypoint.server.api.nodes import CORDON, UNCORDON, to_drain_node
from rallypoint.server.api.workers import to_progress
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.contract.errors import invalid_status, protocol_status, refusal_status
from rallypoint.server.contract.mappers import to_operation
from rallypoint.server.core.invariants import check_job, check_touched
from rallypoint.server.core.memory.replay import memory_of
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Effect, Notify, Refuse, Send, Welcome
from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.desired import DesiredRun, DesiredStop
from rallypoint.server.core.model.events import EVENTS_MAX
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State, apply
from rallypoint.server.core.step import step
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import (
    barrier_service_pb2,
    job_service_pb2,
    key_value_service_pb2,
    node_pb2,
    node_service_pb2,
    worker_service_pb2,
)
from support.contract.boundaries import variants
from support.contract.samples import (
    EPOCH_MS,
    JOB,
    OTHER_JOB,
    TOKEN,
    WORKERS,
    full_hello,
    holding_hello,
    ready_hello,
    reports,
    requests,
    session_id,
)

NOW_MS = EPOCH_MS
"""The wall clock, which stands still, and the coordinator's first epoch."""
WINDOW_MS = 2_500
Stream = dict[str, str | int]
"""Session and connection of a stream; empty before its first message."""
OTHERS = (7, 8)
"""Agents of the other job."""
SHOWN_MAX = 8
"""Latest events that are shown after each message."""
CHANGES: dict[type[Message], Callable[[Any, inputs.Claim], inputs.Input]] = {
    job_service_pb2.CancelJobRequest: lambda request, _: to_operation(request, CANCEL),
    job_service_pb2.RestartJobRequest: lambda request, _: to_operation(request, RESTART),
    job_service_pb2.UpdateJobRequest: lambda request, _: to_update(request),
    job_service_pb2.CreateJobRequest: lambda request, _: to_create(request),
    node_service_pb2.DrainNodeRequest: lambda request, _: to_drain_node(request),
    node_service_pb2.CordonNodeRequest: lambda request, _: to_operation(request, CORDON),
    node_service_pb2.UncordonNodeRequest: lambda request, _: to_operation(request, UNCORDON),
    barrier_service_pb2.ArriveRequest: lambda request, claim: to_arrive(request, claim, 60, NOW_MS),
    worker_service_pb2.ReportProgressRequest: to_progress,
    key_value_service_pb2.WriteKeysRequest: lambda request, claim: to_writes(
        request, claim, NOW_MS
    ),
}
"""What the core gets of each request that reaches it while its job runs.

tests/unit/contract/test_rpcs.py calls all others, too: what only reads changes nothing.
"""
STEPS_MAX = 40
"""Rounds of messages in which every agent does what it has to do; far more than are needed."""


class Rig:
    """A coordinator's state, and what was refused and shown."""

    def __init__(self, *, in_window: bool = False) -> None:
        """Start both jobs, or only the other one in the window after the coordinator's start."""
        self.state = State(
            "c1", NOW_MS, first_epoch=NOW_MS, window_until_ms=WINDOW_MS if in_window else 0
        )
        self.now_ms = 0
        self.taken = 0
        """Inputs that reached the core."""
        if in_window:
            self.state.deadlines.set((DeadlineKind.WINDOW, ""), WINDOW_MS)
        for number in OTHERS if in_window else (*OTHERS, 1, 2):
            self.join(number, OTHER_JOB if number in OTHERS else JOB)
        self.obey()

    def join(self, number: int, job_id: str) -> None:
        assert self.send(self.envelope(number, hello=ready_hello(number, job_id)), {}) == ""

    def envelope(self, number: int, **message: Message) -> agent_pb2.SessionRequest:
        """Return the next message of an agent."""
        node = self.state.nodes.get(SessionId(session_id(number)))
        is_report = not {"hello", "heartbeat"} & set(message)
        return agent_pb2.SessionRequest(
            session_id=session_id(number),
            connection=1 if node is None else node.connection + ("hello" in message),
            sequence=node.acknowledged + 1 if node is not None and is_report else 0,
            epoch=self.state.epoch,
            **message,  # type: ignore[arg-type]  # one arm of the envelope
        )

    def send(self, envelope: agent_pb2.SessionRequest, stream: Stream) -> str:
        """Pass an agent's message through everything; return why it was refused, or "".

        Args:
            envelope: the message; changed by the check.
            stream: session and connection of its stream; empty for the first message of one.
        """
        clock_ms = max(NOW_MS, self.state.epoch - 86_400_000)
        try:
            if not stream:
                return self.take(to_hello(envelope, clock_ms, lambda _, token: token == TOKEN))
            if any(getattr(envelope, name) != value for name, value in stream.items()):
                return "not of this stream"
            report = to_report(envelope, WORKERS, clock_ms)
            return self.take(to_heartbeat(envelope) if report is None else report)
        except InvalidMessage as invalid:
            invalid_status(invalid).SerializeToString()
            return str(invalid)
        except UnsupportedProtocol as unsupported:
            protocol_status(unsupported.lowest, unsupported.highest).SerializeToString()
            return str(unsupported)

    def ask(self, request: Message) -> str:
        """Pass a request that changes something through everything; return why it was refused."""
        try:
            return self.take(CHANGES[type(request)](request, self._claim()))
        except InvalidMessage as invalid:
            return str(invalid)

    def _claim(self) -> inputs.Claim:
        """Return what the token of a worker of the job says."""
        job = self.state.jobs[JobId(JOB)]
        return inputs.Claim(job.job_id, job.run, job.round_number, "token", is_signed=True)

    def take(self, input: inputs.Input) -> str:
        """Step an input, check every invariant, and show everything that anyone can see."""
        self.taken += 1
        before = memory_of(self.state)
        transition = step(self.state, input, self.now_ms)
        apply(self.state, transition.delta)
        check_touched(self.state, transition.delta)
        for job_id in self.state.jobs:
            check_job(self.state, job_id)
        assert transition.refusal is None or before == memory_of(self.state)
        for effect in transition.effects:
            self._show(effect)
        return "" if transition.refusal is None else _text_of(transition.refusal)

    def _show(self, effect: Effect) -> None:
        message = agent_pb2.SessionResponse(epoch=self.state.epoch)
        match effect:
            case Send():
                message.desired.CopyFrom(desired_message(effect))
            case Notify():
                message.notices.CopyFrom(notices_message(effect))
            case Welcome(name=name, run=run):
                message.welcome.CopyFrom(agent_pb2.Welcome(node_name=name, run=run))
            case Refuse(refusal=refusal):
                _text_of(refusal)
        message.SerializeToString()

    def show(self) -> bytes:
        """Return all jobs as readers see them."""
        jobs = self.state.jobs.values()
        wholes = [job_message(self.state, job, self.now_ms) for job in jobs]
        lines = [summary_message(self.state, job, self.now_ms) for job in jobs]
        page = job_service_pb2.ListJobsResponse(jobs=lines).SerializeToString()
        events = self.state.events.find(None, 0, EVENTS_MAX).events
        told = [
            event_message(event, self.state.clocks, self.now_ms) for event in events[-SHOWN_MAX:]
        ]
        return page + b"".join(one.SerializeToString() for one in (*wholes, *told))

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        while (due_ms := self.state.next_deadline_ms()) is not None and due_ms <= self.now_ms:
            self.take(inputs.TimePassed())

    def obey(self) -> None:
        """Let every agent do what it has to do, until nothing is left to do."""
        for _ in range(STEPS_MAX):
            acted = [self._obey(node) for node in tuple(self.state.nodes.values())]
            self.advance(10)
            if not any(acted):
                return
        raise AssertionError("the agents do not come to rest")

    def _obey(self, node: Node) -> bool:
        match node.desired:
            case DesiredRun(header=header) if node.state is NodeState.ASSIGNED:
                started = agent_pb2.Started(round=header.number, pids=[4_000] * WORKERS)
                self.say(node, started=started)
            case DesiredStop(round=number) if node.state is not NodeState.READY:
                self.say(node, ready=agent_pb2.Ready(round=number, master_port=20_000))
            case _:
                return False
        return True

    def say(self, node: Node, **message: Message) -> None:
        """Let an agent send an honest message, which must be taken."""
        envelope = self.envelope(int(node.session, 16), **message)
        stream: Stream = {"session_id": str(node.session), "connection": node.connection}
        assert self.send(envelope, stream) == "", message

    def restart(self) -> None:
        """Let a worker of the job fail, and the job form its next round."""
        job = self.state.jobs[JobId(JOB)]
        members = [node for node in self.state.nodes.values() if node.member]
        ours = [node for node in members if node.job_id == JOB]
        if job.phase is not Phase.RUNNING or job.round is None or not ours:
            return
        failed = node_pb2.WorkerExit(exit_code=1)
        worker = node_pb2.Worker(local_rank=0, exit=failed)
        self.say(ours[-1], exited=agent_pb2.Exited(round=job.round_number, workers=[worker]))
        self.advance(1_000)
        self.obey()

    def beat(self, number: int) -> str:
        """Send an honest heartbeat; return why it was refused."""
        node = self.state.nodes[SessionId(session_id(number))]
        stream: Stream = {"session_id": str(node.session), "connection": node.connection}
        return self.send(self.envelope(number, heartbeat=agent_pb2.Heartbeat(number=1)), stream)

    def other_round(self) -> tuple[int, int]:
        """Return number and failures of the other job's round: always the same."""
        round = self.state.jobs[JobId(OTHER_JOB)].round
        return (0, 0) if round is None else (round.header.number, round.failure_count)


def _text_of(refusal: Refusal) -> str:
    status = refusal_status(refusal)
    status.SerializeToString()
    return str(status.message)


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


CHANGED_BY = [rpc for rpc, request in requests("node1").items() if type(request) in CHANGES]


@pytest.mark.parametrize("rpc", CHANGED_BY)
def test_request(rpc: str) -> None:
    """No value of a request that changes something stops the job."""
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
    for rpc in CHANGED_BY:
        assert "" == Rig().ask(requests("node1")[rpc]), rpc
    for make in (full_hello, holding_hello):
        rig = Rig(in_window=True)
        assert "" == rig.send(rig.envelope(1, hello=make(1, NOW_MS - 1)), {})


# --- Histories of many messages ---

FEW = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    phases=(Stage.generate, Stage.shrink),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=1_500)
KINDS = ("hello ready", "hello held", "hello full", *reports(1))

Mutation = tuple[str, int, tuple[tuple[int, int], ...]]
"""Kind of the envelope, number of its variant (0: valid), and bytes to flip: place and mask."""
Sent = tuple[int, Mutation, bool, int]
"""Node, envelope, whether it comes on the right connection in the right order, and ms before it."""

mutations = st.tuples(
    st.sampled_from(KINDS),
    st.just(0) | st.integers(0, 5_000),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=2).map(tuple),
)
histories = st.lists(
    st.tuples(
        st.integers(1, 3),
        mutations,
        st.booleans() | st.just(True),
        st.sampled_from((0, 1, 700, 9_000)),
    ),
    max_size=12,
)


@cache
def envelopes(kind: str) -> tuple[bytes, ...]:
    """Return a valid envelope of this kind, and all of its variants of reasonable size."""
    valid = agent_pb2.SessionRequest(session_id=session_id(1), connection=1, epoch=NOW_MS)
    if kind.startswith("hello"):
        sample = {
            "hello ready": ready_hello(1),
            "hello held": holding_hello(1, NOW_MS),
            "hello full": full_hello(1, NOW_MS),
        }[kind]
        valid.hello.CopyFrom(sample)
    else:
        valid.sequence = 1
        getattr(valid, kind).CopyFrom(reports(1)[kind])
    encoded = (one.SerializeToString() for _, one in variants(valid))
    return (valid.SerializeToString(), *(raw for raw in encoded if len(raw) < 5_000))


def take(rig: Rig, number: int, mutation: Mutation, *, is_orderly: bool) -> None:
    """Let a node send an envelope; what is orderly fits into its stream."""
    kind, variant, flips = mutation
    known = envelopes(kind)
    raw = bytearray(known[variant % len(known)])
    for place, mask in flips:
        raw[place % len(raw)] ^= mask
    try:
        envelope = agent_pb2.SessionRequest.FromString(bytes(raw))
    except DecodeError:
        return
    arm = envelope.WhichOneof("message")
    if is_orderly and arm is not None:
        orderly = rig.envelope(number, **{arm: getattr(envelope, arm)})
        if arm == "hello" and orderly.hello.node_name == "node1":
            orderly.hello.node_name, orderly.hello.node_rank = f"node{number}", number
        envelope = orderly
    rig.send(envelope, {} if arm == "hello" else {"session_id": envelope.session_id})


def check_history(history: Sequence[Sent]) -> None:
    rig = Rig()
    for number, mutation, is_orderly, pause_ms in history:
        rig.advance(pause_ms)
        take(rig, number, mutation, is_orderly=is_orderly)
    rig.show()
    rig.advance(700_000)  # every wait of the specification ends by then


@pytest.mark.parametrize(
    "amount", [FEW, pytest.param(MANY, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_no_envelope_breaks_the_core(amount: settings) -> None:
    """Invalid messages are refused; all others leave a sound state."""
    amount(given(histories)(check_history))()


@pytest.mark.nightly
def test_unchecked_messages_break_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ranges of the contract, they break an invariant, a step, or what is shown."""
    for module in (hello, report_messages):
        monkeypatch.setattr(module, "check", lambda *args: None)
    rare = settings(MANY, phases=(Stage.generate,), max_examples=12_000)
    unchecked = rare(given(histories)(check_history))

    with pytest.raises((BrokenInvariant, LookupError, ValueError)):
        unchecked()
