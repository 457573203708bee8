"""Messages of a small world. Each is converted by the product's own code, through its bytes.

A state of a small world is a value. So a message to the coordinator is kept as the input that its
conversion gives, and one to an agent as the effects that it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rallypoint.agent.core import desired
from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.session.translate import parse_desired, parse_notices
from rallypoint.server.agents.desired import desired_message, notices_message
from rallypoint.server.agents.hello import to_hello
from rallypoint.server.agents.reports import to_report
from rallypoint.server.core.messages import effects, inputs
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from sim.world.wire import Hangup, carried

CACHED_MAX = 4_096
CLOCK_MS = 1 << 40
"""Of the coordinator, as Unix time: later than every epoch here."""

Up = inputs.Hello | inputs.Report | Hangup


@dataclass(frozen=True, slots=True)
class Down:
    """An envelope to an agent. A Welcome brings the desired state along when there is one."""

    connection: int
    epoch: int
    acknowledged: int
    welcome: effects.Welcome | None = None
    coordinator_id: str = ""
    desired: effects.Send | None = None
    notify: effects.Notify | None = None


def hello_of(hello: agent_pb2.Hello, session: str, connection: int, epoch: int) -> inputs.Hello:
    """Return the first message of a stream as the coordinator receives it."""
    envelope = agent_pb2.SessionRequest(
        session_id=session, connection=connection, epoch=epoch, hello=hello
    )
    return to_hello(carried(envelope), CLOCK_MS)


def report_of(
    message: agent_pb2.SessionRequest, sender: inputs.Sender, workers: int
) -> inputs.Report:
    """Return a report as the coordinator receives it."""
    message.session_id, message.connection = sender.session, sender.connection
    message.epoch, message.sequence = sender.epoch, sender.sequence
    report = to_report(carried(message), workers, CLOCK_MS)
    assert report is not None
    return report


@lru_cache(maxsize=CACHED_MAX)
def desired_of(send: effects.Send, epoch: int, now_ms: int) -> agent_inputs.DesiredReceived:
    """Return a desired state as the agent receives it now."""
    received = parse_desired(epoch, carried(desired_message(send)), now_ms)
    assert received is not None
    return received


def coordinator_id(life: int) -> str:
    """Return the id of the coordinator in one life."""
    return f"{life:032x}"


def finished_of(send: effects.Send) -> agent_pb2.Finished | None:
    """Return the outcome that a desired state has for the agent, if it has one."""
    message = carried(desired_message(send))
    return message.finished if message.HasField("finished") else None


def notices_of(notify: effects.Notify | None, now_ms: int) -> tuple[desired.Notice, ...]:
    """Return a node's notices as its agent receives them."""
    message = agent_pb2.Notices() if notify is None else carried(notices_message(notify))
    return parse_notices(message, now_ms)
