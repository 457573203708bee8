"""Whatever arrives: it is refused as invalid, or the core takes it and its state stays sound.

Two nodes form a round. Then envelopes arrive that are valid ones with some fields at boundary
values, or with flipped bytes. A failure prints the shortest history that hypothesis finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rallypoint.server.core.invariants import check_job
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.reads.replay import memory_of
from rallypoint.server.core.state.state import State, apply
from rallypoint.server.core.step import step
from rallypoint.server.rpc.calls import InvalidMessage
from rallypoint.server.rpc.convert import hello, reports
from rallypoint.server.rpc.convert.hello import UnsupportedProtocol, to_hello
from rallypoint.server.rpc.convert.reports import to_heartbeat, to_report
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from support.contract import samples
from support.contract.boundaries import variants
from support.contract.samples import WORKERS

EPOCH = 1_000
CLOCK_MS = 1_000_000
FEW = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=1_500)
KINDS = ("hello ready", "hello held", "hello full", *samples.reports(1))

Mutation = tuple[str, int, tuple[tuple[int, int], ...]]
"""Kind of the envelope, number of its variant (0: valid), and bytes to flip: place and mask."""
Step = tuple[int, Mutation, bool, int]
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
    valid = agent_pb2.SessionRequest(session_id=samples.session_id(1), connection=1, epoch=EPOCH)
    if kind.startswith("hello"):
        sample = {
            "hello ready": samples.ready_hello(1),
            "hello held": samples.holding_hello(1, EPOCH),
            "hello full": samples.full_hello(1, EPOCH),
        }[kind]
        valid.hello.CopyFrom(sample)
    else:
        valid.sequence = 1
        getattr(valid, kind).CopyFrom(samples.reports(1)[kind])
    encoded = (one.SerializeToString() for _, one in variants(valid))
    return (valid.SerializeToString(), *(raw for raw in encoded if len(raw) < 5_000))


class Edge:
    """What the service does with envelopes, without streams: convert, then step."""

    def __init__(self) -> None:
        self.state = State("c", EPOCH, first_epoch=EPOCH)
        self.now_ms = 0
        self.connections = dict.fromkeys((1, 2, 3), 0)
        self.sequences = dict.fromkeys((1, 2, 3), 0)
        for number in (1, 2):
            self.take(number, ("hello ready", 0, ()), is_orderly=True)
        for number in (1, 2):
            self.take(number, ("started", 0, ()), is_orderly=True)

    def take(self, number: int, mutation: Mutation, *, is_orderly: bool) -> None:
        """Take an envelope of a node; let what is orderly fit into its stream."""
        kind, variant, flips = mutation
        known = envelopes(kind)
        raw = bytearray(known[variant % len(known)])
        for place, mask in flips:
            raw[place % len(raw)] ^= mask
        try:
            envelope = agent_pb2.SessionRequest.FromString(bytes(raw))
        except DecodeError:
            return
        if is_orderly:
            self._put_in_order(envelope, number)
        try:
            input = self._convert(envelope)
        except (InvalidMessage, UnsupportedProtocol):
            return
        self.step(input)

    def _put_in_order(self, envelope: agent_pb2.SessionRequest, number: int) -> None:
        """Give an envelope the session, connection and number that the node's next one has."""
        is_hello = envelope.WhichOneof("message") == "hello"
        envelope.session_id, envelope.epoch = samples.session_id(number), EPOCH
        self.connections[number] += is_hello
        envelope.connection = max(1, self.connections[number])
        if is_hello:
            if envelope.hello.node_name == "node1":
                envelope.hello.node_name = f"node{number}"
                envelope.hello.node_rank = number
        elif envelope.WhichOneof("message") != "heartbeat":
            node = self.state.nodes.get(SessionId(samples.session_id(number)))
            envelope.sequence = 1 + (0 if node is None else node.acknowledged)

    def _convert(self, envelope: agent_pb2.SessionRequest) -> inputs.Input:
        if envelope.WhichOneof("message") == "hello":
            return to_hello(envelope, CLOCK_MS)
        report = to_report(envelope, WORKERS, CLOCK_MS)
        return to_heartbeat(envelope) if report is None else report

    def step(self, input: inputs.Input) -> None:
        """Step an input, and check every job."""
        before = memory_of(self.state)
        transition = step(self.state, input, self.now_ms)
        apply(self.state, transition.delta)
        if transition.refusal is not None:
            assert before == memory_of(self.state), transition.refusal
        for job_id in list(self.state.jobs):
            check_job(self.state, job_id)

    def pass_time(self, ms: int) -> None:
        """Let time pass, with every deadline in it."""
        self.now_ms += ms
        while (due_ms := self.state.next_deadline_ms()) is not None and due_ms <= self.now_ms:
            self.step(inputs.TimePassed())


def check_history(history: Sequence[Step]) -> None:
    edge = Edge()
    for number, mutation, is_orderly, pause_ms in history:
        edge.pass_time(pause_ms)
        edge.take(number, mutation, is_orderly=is_orderly)
    edge.pass_time(700_000)  # every wait of the specification ends by then


def test_history_begins_with_a_running_round() -> None:
    """Otherwise the histories would prove little."""
    edge = Edge()

    (job,) = edge.state.jobs.values()
    assert job.round is not None
    assert job.round.started_ms is not None


@pytest.mark.parametrize(
    "amount", [FEW, pytest.param(MANY, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_no_envelope_breaks_the_core(amount: settings) -> None:
    """Invalid messages are refused; all others leave a sound state."""
    amount(given(histories)(check_history))()


@pytest.mark.nightly
def test_unchecked_messages_break_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ranges of the contract, the same histories break an invariant, or a step."""
    for module in (hello, reports):
        monkeypatch.setattr(module, "check", lambda *args: None)
    rare = settings(MANY, phases=(Phase.generate,), max_examples=12_000)
    unchecked = rare(given(histories)(check_history))

    with pytest.raises((BrokenInvariant, LookupError)):
        unchecked()
