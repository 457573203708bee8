"""What travels between agents and the coordinator: the bytes of the protocol's messages.

Both sides make and read them with the product's own code, so a bug in a conversion shows here too.
What the coordinator would refuse as invalid breaks the rule `Contract`: an agent never sends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from rallypoint.agent.core import desired
from rallypoint.agent.session.endings import BrokenStream, read_ending
from rallypoint.agent.settings import CAPABILITIES, Settings
from rallypoint.server.agents.hello import AgreedProtocol
from rallypoint.server.contract.mappers import OUTCOMES, REASONS, SPEC
from rallypoint.server.core.model.node import Program
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import RoundHeader
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from sim.seeds.scenario import NodePlan

M = TypeVar("M", bound=Message)

TERMS = AgreedProtocol(1, frozenset(CAPABILITIES))
"""What every coordinator agrees on with every agent."""

_REASONS = {number: reason for reason, number in REASONS.items()}
_OUTCOMES = {number: outcome for outcome, number in OUTCOMES.items()}


@dataclass(frozen=True, slots=True)
class Hangup:
    """The other side or the network ended the stream."""

    status: bytes = b""
    """The coordinator's google.rpc.Status; empty when the stream broke, or ended in order."""
    is_orderly: bool = False
    """The coordinator has nothing more to say to an agent that has left."""


def ending_of(hangup: Hangup) -> Exception:
    """Return what the end of a stream means for the agent, by its own rules."""
    if not hangup.status:
        return BrokenStream("the stream broke")
    status: Any = rpc_status.to_status(Status.FromString(hangup.status))
    code: grpc.StatusCode = status.code
    return read_ending(code, status.details, status.trailing_metadata)


def carried(message: M) -> M:
    """Return a message as the other side parses it."""
    return type(message).FromString(message.SerializeToString())


def outcome_of(finished: agent_pb2.Finished) -> Outcome:
    """Return the outcome that an agent received."""
    return _OUTCOMES[finished.outcome]


@lru_cache(maxsize=4_096)
def header_of(order: desired.RunOrder) -> RoundHeader:
    """Return what the members of an order's round share, as the coordinator's core has it."""
    header = order.header
    return RoundHeader(
        number=header.number,
        run=header.run,
        world_size=header.world_size,
        group_world_size=header.group_world_size,
        master_addr=header.master_addr,
        master_port=header.master_port,
        restart_count=header.restart_count,
        reason=_REASONS[header.reason],
        epoch=header.epoch,
    )


def host_addresses_of(plan: NodePlan) -> tuple[str, ...]:
    """Return the addresses of a node: the one that it finds, and that on a faster network."""
    _, job, _, node = plan.address.split(".")
    return plan.address, f"10.{job}.1.{node}"


def add_addresses(hello: agent_pb2.Hello, plan: NodePlan) -> None:
    """Let the coordinator be on the host of a job's first node, and how it is reached vary."""
    own, fast = host_addresses_of(plan)
    if own.startswith("127.") or plan.role == "reader":
        return  # as an agent that does not say
    if own.endswith(".1"):
        hello.host_addresses.extend((own, fast))
        return
    _, job, _, node = map(int, own.split("."))
    subnet = (1, 1, 9, node % 2)[(job + plan.workers) % 4]  # 9: that of a service
    hello.coordinator_addresses.append(f"10.{job}.{subnet}.1")


def settings_of(plan: NodePlan, spec: JobSpec, session: str) -> Settings:
    """Return the settings of an agent on a node; what no message carries is left out."""
    absent: Any = None
    return Settings(
        coordinator="coordinator:1",
        is_standalone=False,
        job_id=plan.job_id,
        spec=SPEC.to_message(spec),
        workers=plan.workers,
        role=plan.role,
        node_name=plan.name,
        node_name_explicit=plan.explicit,
        node_rank=plan.node_rank,
        address=plan.address,
        host_name=host_name_of(plan),
        labels=dict(plan.labels),
        launch_id=plan.launch_id,
        launch=absent,
        program=absent if plan.program is None else _program_message(plan.program),
        output=absent,
        logs_plugin=None,
        shutdown_timeout_ms=spec.shutdown_timeout_ms,
        drain_ms=plan.drain_ms,
        drain_signal=None,
        coordinator_timeout_ms=plan.coordinator_timeout_ms,
        outcome_timeout_ms=0,
        fence_ms=spec.fence_after_ms,
        signals=(),
        incarnation=session,
        environment={},
    )


def host_name_of(plan: NodePlan) -> str:
    """Return the name of a node's machine."""
    return f"{plan.name}.{plan.job_id}.example"


def _program_message(program: Program) -> agent_pb2.Program:
    return agent_pb2.Program(
        name=program.name,
        arguments_digest=program.arguments_digest,
        command_line=program.command_line,
        worker_command=program.worker_command,
        user=program.user,
        may_differ=program.may_differ,
    )
