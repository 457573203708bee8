"""The first message of a stream as an input."""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.base.limits import (
    LABEL_CHARS_MAX,
    LABELS_MAX,
    NAME_BYTES_MAX,
    PROTOCOL_VERSION,
    WORKERS_PER_NODE_MAX,
)
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.node import Identity
from rallypoint.server.rpc.convert.checks import limit_text, require, to_job_id, to_node_name
from rallypoint.server.rpc.convert.held_round import to_held_round
from rallypoint.server.rpc.convert.reports import to_drain, to_ready
from rallypoint.server.rpc.convert.spec import to_spec
from rallypoint.v1 import agent_service_pb2 as agent_pb2

_HEXADECIMAL = frozenset("0123456789abcdef")


class UnsupportedProtocol(Exception):
    """The agent speaks another protocol version."""

    def __init__(self, version: int) -> None:
        """Keep the agent's version."""
        super().__init__(f"protocol version {version} is not {PROTOCOL_VERSION}")
        self.version = version


def to_hello(envelope: agent_pb2.SessionRequest) -> inputs.Hello:
    """Return the input of the first message of a stream.

    Raises:
        InvalidMessage: when it is no Hello, or breaks the contract.
        UnsupportedProtocol: when the agent speaks another protocol version.
    """
    require(envelope.WhichOneof("message") == "hello", "message", "the first must be hello")
    require(envelope.connection > 0, "connection", "must be 1 or more")
    hello = envelope.hello
    if hello.protocol_version != PROTOCOL_VERSION:
        raise UnsupportedProtocol(hello.protocol_version)
    has_held, has_ready = hello.HasField("held"), hello.HasField("ready")
    require(has_held != has_ready, "hello", "exactly one of held and ready must be set")
    has_drain = hello.HasField("draining")
    return inputs.Hello(
        identity=_identity(_session(envelope), hello),
        connection=envelope.connection,
        epoch=envelope.epoch,
        run=hello.run,
        coordinator_id=hello.coordinator_id,
        coordinator_durable=hello.coordinator_durable,
        acknowledged=hello.reports_acknowledged,
        revision=hello.revision_applied,
        held=to_held_round(hello.held) if has_held else None,
        ready=to_ready(hello.ready, "hello.ready") if has_ready else None,
        draining=to_drain(hello.draining, "hello.draining") if has_drain else None,
    )


def _session(envelope: agent_pb2.SessionRequest) -> SessionId:
    session = envelope.session_id
    is_hex = len(session) == 32 and _HEXADECIMAL.issuperset(session)
    require(is_hex, "session_id", "must be 32 lower-case hexadecimal digits")
    return SessionId(session)


def _identity(session: SessionId, hello: agent_pb2.Hello) -> Identity:
    workers = hello.local_world_size
    fits = 1 <= workers <= WORKERS_PER_NODE_MAX
    require(fits, "hello.local_world_size", f"must be 1 to {WORKERS_PER_NODE_MAX}")
    _require_name(hello.role, "hello.role")
    return Identity(
        job_id=to_job_id(hello.job_id, "hello.job_id"),
        session=session,
        spec=to_spec(hello.spec),
        name=to_node_name(hello.node_name, "hello.node_name"),
        name_explicit=hello.node_name_explicit,
        address=_address(hello.address),
        local_world_size=workers,
        role=hello.role,
        labels=_labels(hello.labels),
        node_rank=hello.node_rank if hello.HasField("node_rank") else None,
        launch_id=limit_text(hello.launch_id, NAME_BYTES_MAX),
        host_name=limit_text(hello.host_name, NAME_BYTES_MAX),
    )


def _address(address: str) -> str:
    require(bool(address), "hello.address", "must not be empty")
    _require_name(address, "hello.address")
    return address


def _require_name(name: str, path: str) -> None:
    require(len(name) <= NAME_BYTES_MAX, path, f"must have at most {NAME_BYTES_MAX} characters")


def _labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    require(len(labels) <= LABELS_MAX, "hello.labels", f"must be at most {LABELS_MAX}")
    for key, value in labels.items():
        fits = 0 < len(key) <= LABEL_CHARS_MAX and len(value) <= LABEL_CHARS_MAX
        problem = f"a key needs 1 to {LABEL_CHARS_MAX} characters, a value at most that many"
        require(fits, "hello.labels", problem)
    return tuple(sorted(labels.items()))
