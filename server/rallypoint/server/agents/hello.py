"""The first message of a stream as an input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address

from msgspec import Struct

from rallypoint.base.limits import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from rallypoint.server.agents.held_round import to_held_round
from rallypoint.server.agents.reports import to_drain, to_ready
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import require
from rallypoint.server.contract.mappers import PROGRAM
from rallypoint.server.contract.spec import to_spec
from rallypoint.server.contract.terms import CAPABILITIES
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.node import Identity, KnownAddresses, Program
from rallypoint.v1 import agent_service_pb2 as agent_pb2

ROUND_MAX = 2**52
"""Highest round that a Hello may report. Later rounds have higher numbers, which have to stay
exact in JSON and JavaScript."""
PROGRAMS_SHARED_MAX = 1_024
"""Programs that nodes share in memory: thousands of nodes have the same command line of up to 4,096
characters."""


class AgreedProtocol(Struct, frozen=True):
    """What agent and coordinator have agreed on for one connection."""

    version: int
    """Of the protocol."""
    capabilities: frozenset[agent_pb2.Capability.ValueType]
    """What both can do beyond that."""


OLDEST_PROTOCOL = AgreedProtocol(1, frozenset({agent_pb2.CAPABILITY_NOTICES}))
"""Agents of the first releases say nothing about themselves: they speak version 1 with notices."""


class UnsupportedProtocol(Exception):
    """Agent and coordinator have no protocol version in common."""

    def __init__(self, lowest: int, highest: int) -> None:
        """Keep the agent's versions."""
        ours = f"{PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}"
        super().__init__(f"protocol versions {lowest} to {highest} are not {ours}")
        self.lowest = lowest
        self.highest = highest


def to_hello(
    envelope: agent_pb2.SessionRequest,
    clock_ms: int,
    is_proof: Callable[[str, str], bool] = lambda session_id, token: False,
) -> inputs.Hello:
    """Return the input of the first message of a stream.

    Args:
        envelope: the message; its facts are brought into their range.
        clock_ms: the coordinator's clock, as Unix time; epochs are at most a day ahead of it.
        is_proof: whether a session's token is the one that this coordinator gave to it.

    Raises:
        InvalidMessage: when it is no Hello, or breaks the contract.
        UnsupportedProtocol: when the agent speaks no protocol version of this coordinator.
    """
    require(envelope.WhichOneof("message") == "hello", "message", "the first must be hello")
    hello = envelope.hello
    agree_on_protocol(
        hello
    )  # before all else: in another version, the other fields may mean other things
    check(envelope, clock_ms)
    has_held, has_ready = hello.HasField("held"), hello.HasField("ready")
    require(has_held != has_ready, "hello", "exactly one of held and ready must be set")
    # The table cannot say this: later messages report higher rounds, with the same field.
    require(hello.ready.round <= ROUND_MAX, "hello.ready.round", f"must be 0 to {ROUND_MAX}")
    has_drain = hello.HasField("draining")
    return inputs.Hello(
        identity=_identity(SessionId(envelope.session_id), hello),
        connection=envelope.connection,
        epoch=envelope.epoch,
        run=hello.run,
        coordinator_id=hello.coordinator_id,
        coordinator_durable=hello.coordinator_durable,
        acknowledged=hello.reports_acknowledged,
        revision=hello.revision_applied,
        held=to_held_round(hello) if has_held else None,
        ready=to_ready(hello.ready) if has_ready else None,
        draining=to_drain(hello.draining) if has_drain else None,
        known_addresses=KnownAddresses(
            _to_addresses(hello.coordinator_addresses), _to_addresses(hello.host_addresses)
        ),
        is_proven=is_proof(envelope.session_id, hello.resume_token),
    )


def _to_addresses(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the IP addresses, each in its usual form; leave out what is none."""
    found = []
    for text in texts:
        with suppress(ValueError):
            found.append(str(ip_address(text)))
    return tuple(found)


def agree_on_protocol(hello: agent_pb2.Hello) -> AgreedProtocol:
    """Return the highest protocol version that both sides speak, and what both can do.

    What the agent can do and the coordinator does not know is left out.

    Raises:
        UnsupportedProtocol: when there is none.
    """
    lowest, highest = hello.min_protocol_version or hello.protocol_version, hello.protocol_version
    chosen = min(highest, PROTOCOL_VERSION)
    if chosen < max(lowest, PROTOCOL_VERSION_MIN):
        raise UnsupportedProtocol(lowest, highest)
    if not hello.min_protocol_version:
        return AgreedProtocol(chosen, OLDEST_PROTOCOL.capabilities)
    return AgreedProtocol(chosen, CAPABILITIES.intersection(hello.capabilities))


def _identity(session: SessionId, hello: agent_pb2.Hello) -> Identity:
    return Identity(
        job_id=JobId(hello.job_id),
        session=session,
        spec=to_spec(hello.spec, "hello.spec"),
        name=NodeName(hello.node_name),
        name_explicit=hello.node_name_explicit,
        address=hello.address,
        local_world_size=hello.local_world_size,
        role=hello.role,
        labels=tuple(sorted(hello.labels.items())),
        node_rank=hello.node_rank if hello.HasField("node_rank") else None,
        launch_id=hello.launch_id,
        host_name=hello.host_name,
        program=_share(PROGRAM.to_struct(hello.program)) if hello.HasField("program") else None,
    )


@lru_cache(maxsize=PROGRAMS_SHARED_MAX)
def _share(program: Program) -> Program:
    """Return one value for equal programs."""
    return program
