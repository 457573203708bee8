"""What agent and coordinator agree on at the beginning of a connection."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.descriptor import Descriptor

from rallypoint.agent.settings import CAPABILITIES
from rallypoint.server.agents import hello as convert
from rallypoint.server.agents.hello import (
    OLDEST_PROTOCOL,
    AgreedProtocol,
    UnsupportedProtocol,
    agree_on_protocol,
)
from rallypoint.server.contract.limits import HELLO_S_MAX
from rallypoint.server.core.model.spec import Timing
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2, node_service_pb2
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from rallypoint.wire.durations import to_ms
from rallypoint.wire.errors import unpack_details
from rallypoint.wire.limits import Kind, find_rule
from support.core.served import LIMIT_S, Agent, served

NOTICES = agent_pb2.CAPABILITY_NOTICES
PAIR = job_pb2.JobSpec(min_nodes=2, max_nodes=2)


@pytest.mark.parametrize(
    ("agent", "coordinator", "chosen"),
    [
        ((1, 1), (1, 1), 1),
        ((0, 1), (1, 1), 1),  # names no lowest version
        ((1, 2), (1, 1), 1),
        ((1, 1), (1, 2), 1),
        ((1, 3), (2, 5), 3),
        ((2, 4), (1, 3), 3),
        ((2, 2), (1, 1), None),
        ((0, 2), (1, 1), None),
        ((1, 1), (2, 3), None),
        ((0, 0), (1, 1), None),
        ((3, 1), (1, 1), None),  # contradicts itself
    ],
)
def test_highest_common_version_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    agent: tuple[int, int],
    coordinator: tuple[int, int],
    chosen: int | None,
) -> None:
    """Each side may be older or newer; without a common version the agent is refused."""
    monkeypatch.setattr(convert, "PROTOCOL_VERSION_MIN", coordinator[0])
    monkeypatch.setattr(convert, "PROTOCOL_VERSION", coordinator[1])
    hello = agent_pb2.Hello(min_protocol_version=agent[0], protocol_version=agent[1])
    try:
        found: int | None = agree_on_protocol(hello).version
    except UnsupportedProtocol as refused:
        found = None
        assert (agent[0] or agent[1], agent[1]) == (refused.lowest, refused.highest)

    assert chosen == found


@pytest.mark.parametrize(
    ("lowest", "capabilities", "shared"),
    [
        (0, [], {NOTICES}),
        (1, [], set()),
        (1, [NOTICES], {NOTICES}),
        (1, [NOTICES, 99], {NOTICES}),
    ],
)
def test_only_what_both_can_do_is_used(
    lowest: int, capabilities: list[agent_pb2.Capability.ValueType], shared: set[int]
) -> None:
    """What is unknown here is ignored; an agent of the first releases understands notices."""
    hello = agent_pb2.Hello(
        min_protocol_version=lowest, protocol_version=1, capabilities=capabilities
    )

    assert AgreedProtocol(1, frozenset(shared)) == agree_on_protocol(hello)  # type: ignore[arg-type]
    assert OLDEST_PROTOCOL == agree_on_protocol(agent_pb2.Hello(protocol_version=1))


async def test_welcome_names_terms_and_true_deadlines() -> None:
    """The deadlines are those of the coordinator's timing, the lease is the job's."""
    timing = Timing(window_ms=0, start_due_ms=7_000, stop_slack_ms=3_000, reconnect_grace_ms=900)
    async with served(timing) as server:
        agent = server.agent("job", 1)
        spec = job_pb2.JobSpec(min_nodes=1, max_nodes=1)
        spec.lease.FromSeconds(9)
        await agent.hello(
            min_protocol_version=1, protocol_version=4, capabilities=CAPABILITIES, spec=spec
        )
        welcome = (await agent.read()).welcome
    deadlines = welcome.deadlines

    assert (1, sorted(CAPABILITIES)) == (welcome.protocol_version, list(welcome.capabilities))
    assert (round(HELLO_S_MAX * 1000), 7_000, 3_000, 900, 9_000) == (
        to_ms(deadlines.hello_within),
        to_ms(deadlines.started_within),
        to_ms(deadlines.ready_slack),
        to_ms(deadlines.reconnect_within),
        to_ms(deadlines.lease),
    )
    assert welcome.lease == deadlines.lease


async def test_agent_without_a_common_version_is_refused() -> None:
    """Before anything else of its Hello is looked at, with both ranges."""
    async with served() as server:
        agent = server.agent("job", 1)
        await agent.hello(min_protocol_version=2, protocol_version=3, address="\0")
        code, text = await agent.ending()
        details = unpack_details(await agent.call.trailing_metadata())

    assert grpc.StatusCode.FAILED_PRECONDITION is code
    assert "upgrade the coordinator" in text
    assert "PROTOCOL_MISMATCH" == details.reason
    assert details_pb2.ProtocolMismatch(
        agent_min=2, agent_max=3, coordinator_min=1, coordinator_max=1
    ) == details.own  # fmt: skip


async def kinds_of(agent: Agent) -> list[str]:
    """Return the kinds of messages until a heartbeat that is sent now is answered."""
    agent.beats += 1
    beat = agent_pb2.Heartbeat(number=agent.beats)
    await agent.write(agent_pb2.SessionRequest(heartbeat=beat))
    kinds: list[str] = []
    while True:
        message = await agent.read()
        kinds.append(str(message.WhichOneof("message")))
        if message.acknowledgement.heartbeat == agent.beats:
            return kinds


async def test_notices_go_only_to_agents_that_pass_them_on() -> None:
    """An agent that says what it can do, but not this, gets none; nor with its next Welcome."""
    async with served() as server:
        deaf, able, leaving = (server.agent("job", number) for number in (1, 2, 3))
        three = job_pb2.JobSpec(min_nodes=3, max_nodes=3)
        await deaf.hello(min_protocol_version=1, spec=three)
        await able.hello(min_protocol_version=1, spec=three, capabilities=CAPABILITIES)
        await leaving.hello(spec=three)
        for agent in (deaf, able, leaving):
            assert (await agent.read()).HasField("welcome")
        drain = node_service_pb2.DrainNodeRequest(job_id="job", node_name="n3", reason="repair")
        drain.drain_timeout.FromSeconds(60)
        await node_grpc.NodeServiceStub(server.channel).DrainNode(drain, timeout=LIMIT_S)
        told = {"deaf": await kinds_of(deaf), "able": await kinds_of(able)}
        again = deaf.again(server)
        await again.hello(min_protocol_version=1, spec=three)
        welcome = (await again.read()).welcome

    assert ("notices" in told["deaf"], "notices" in told["able"]) == (False, True)
    assert not welcome.HasField("notices")


def find_wished_enums(message: Descriptor) -> Iterator[str]:
    """Yield the full name of every enum in a message that is a wish."""
    for field in message.fields:
        rule = find_rule(field)
        if field.enum_type is not None and rule is not None and rule.kind is Kind.WISH:
            yield field.full_name
        if field.message_type is not None:
            yield from find_wished_enums(field.message_type)


def test_hello_wishes_for_no_value_of_an_enum() -> None:
    """An older coordinator would refuse a new value, and the agent could not join (versions.md)."""
    wished = [*find_wished_enums(agent_pb2.Hello.DESCRIPTOR)]

    assert [] == wished
