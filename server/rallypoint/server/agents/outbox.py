"""Outgoing messages to each agent. A newer message replaces an older one; there is no queue.

An outbox has room for one message of each kind. The newest desired state replaces one that was not
sent yet, and only the highest acknowledgement counts. So an agent that does not read costs one
outbox, whatever happens meanwhile. A refusal ends the stream; otherwise the order is Welcome,
desired state, notices, request for evidence, answer to a heartbeat.

Every message carries the acknowledgement of reports, at the latest the answer to the next
heartbeat. A message for each acknowledgement would double the cost of a round. If the stream breaks
first, the agent sends its reports again, with the same numbers.
"""

from __future__ import annotations

import asyncio

from google.rpc.status_pb2 import Status
from msgspec import Struct, field

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.agents.hello import OLDEST_PROTOCOL, AgreedProtocol
from rallypoint.server.contract.errors import (
    ended_status,
    internal_status,
    lost_status,
    refusal_status,
    replaced_status,
)
from rallypoint.server.contract.node import show_session
from rallypoint.server.core.messages.effects import (
    Acknowledge,
    Disconnect,
    Effect,
    Notify,
    Refuse,
    Send,
    Welcome,
)
from rallypoint.server.core.messages.inputs import Hello, Input, Senderless
from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.spec import NOTHING_ASKED, JobSpec
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.listeners import Listener
from rallypoint.v1 import agent_service_pb2 as agent_pb2

log = get_logger()

_AgentEffect = Welcome | Send | Notify | Acknowledge | Refuse | Disconnect


class Outbox(Struct):
    """The messages to send on one connection."""

    session: SessionId
    connection: int
    job_id: JobId
    """Its agent's job."""
    spec: JobSpec = NOTHING_ASKED
    """The agent's specification, which may choose the heartbeat interval and the lease."""
    terms: AgreedProtocol = OLDEST_PROTOCOL
    """Version and capabilities that its Hello has led to."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: bool = False
    """The core has accepted its Hello: the first message is the Welcome."""
    welcome: Welcome | None = None
    desired: Send | None = None
    notify: Notify | None = None
    collect: agent_pb2.CollectEvidence | None = None
    acknowledged: int = 0
    """Highest report to acknowledge."""
    heartbeat: int = 0
    """Highest heartbeat received."""
    answered: int = 0
    """Highest heartbeat that was answered."""
    interval_ms: int = 0
    """Heartbeat interval that was sent last."""
    runs_workers: bool = False
    """The latest desired state runs workers, so of all waits the agent needs only a hang."""
    end: Status | None = None
    """Set when the stream has to end."""
    failure: Exception | None = None
    """Set when its stream cannot be read any more."""
    ended: bool = False
    """The peer's side of the stream has ended."""
    is_closed: bool = False
    """The stream has ended on both sides."""
    was_refused: bool = False
    """The core has refused its Hello, so its end means nothing to the session."""
    has_left: bool = False
    """The node's Goodbye is in the journal: the stream ends after its acknowledgement."""
    hosts: tuple[str, ...] = ()
    """That it counts for in the limits; empty: they are not known."""

    def acknowledge_heartbeat(self, number: int) -> None:
        """Note a heartbeat that has to be answered."""
        self.heartbeat = max(self.heartbeat, number)
        self.wake.set()

    def finish(self, status: Status) -> None:
        """End the stream with `status`."""
        if self.end is None:
            self.end = status
        self.wake.set()


class Outboxes(Listener):
    """The outboxes of all connections.

    The core decides which connection a session has. A new one gets nothing but its refusal until
    the core welcomes it; only then the older one ends. So a refused Hello has no effect.
    """

    KINDS = (Welcome, Send, Notify, Acknowledge, Refuse, Disconnect)

    def __init__(self) -> None:
        """Start without connections."""
        self._by_session: dict[SessionId, Outbox] = {}
        """The connection that each session has."""
        self._opened: dict[tuple[SessionId, int], Outbox] = {}
        """Connections whose Hello the core has not answered yet, by session and number."""
        self._has_ended = False
        """No turn will come; a new connection ends at once."""

    def open(
        self,
        session: SessionId,
        connection: int,
        job_id: JobId,
        spec: JobSpec = NOTHING_ASKED,
        terms: AgreedProtocol = OLDEST_PROTOCOL,
        wake: asyncio.Event | None = None,
    ) -> Outbox:
        """Return the outbox of a new connection, whose Hello is submitted next.

        `wake` is set when there is something to send; None: a new event. The outbox may
        have an end already: then its Hello must not be submitted. `close` it afterwards.
        """
        outbox = Outbox(session, connection, job_id, spec, terms, wake or asyncio.Event())
        key, current = (session, connection), self._by_session.get(session)
        if self._has_ended:
            outbox.finish(ended_status())
        elif current is not None and connection <= current.connection:
            outbox.finish(replaced_status(current.connection, connection))
        elif key in self._opened:
            outbox.finish(replaced_status(connection, connection))
        else:
            self._opened[key] = outbox
        return outbox

    def collect(self, session: SessionId, request: agent_pb2.CollectEvidence) -> bool:
        """Ask an agent for evidence; return whether it can be asked."""
        outbox = self._by_session.get(session)
        if outbox is None or agent_pb2.CAPABILITY_EVIDENCE not in outbox.terms.capabilities:
            return False
        outbox.collect = request
        outbox.wake.set()
        return True

    def hosts_of(self, input: Input) -> tuple[str, ...]:
        """Return the hosts of the agent that has sent an input; empty: none has, or it is gone."""
        outbox = None
        if isinstance(input, Hello):
            outbox = self._opened.get((input.identity.session, input.connection))
        elif not isinstance(input, Senderless):
            outbox = self._by_session.get(input.sender.session)
        return () if outbox is None else outbox.hosts

    def withdraw(self, outbox: Outbox) -> None:
        """Forget a new connection whose Hello could not be submitted."""
        self._opened.pop((outbox.session, outbox.connection), None)

    def close(self, outbox: Outbox) -> None:
        """Forget a connection that has ended; one whose Hello was not answered, with the answer."""
        outbox.is_closed = True
        if self._by_session.get(outbox.session) is outbox:
            del self._by_session[outbox.session]

    def note(self, effect: Effect, state: State) -> None:
        """Put an effect into the outbox of its agent; a bug that strikes it ends its stream."""
        match effect:
            case Welcome() | Send() | Notify() | Acknowledge() | Refuse() | Disconnect():
                self._put(effect)
            case _:  # of the other listeners
                pass

    def _put(self, effect: _AgentEffect) -> None:
        """Put an effect into the outbox of its agent, if it has one."""
        outbox: Outbox | None = None
        try:
            outbox = self._find(effect)
            if outbox is not None:
                _put(outbox, effect)
        except Exception as error:  # it ends this stream, not the coordinator
            incident = new_incident()
            session_id = show_session(effect.session)
            log.error("put_failed", incident=incident, session_id=session_id, exc_info=error)
            if outbox is not None:
                outbox.finish(internal_status(incident))

    def _find(self, effect: _AgentEffect) -> Outbox | None:
        """Return the outbox of an effect; a Welcome gives its connection to the session."""
        current = self._by_session.get(effect.session)
        if not isinstance(effect, Welcome | Refuse):
            return current
        opened = self._opened.pop((effect.session, effect.connection), None)
        if opened is None:
            return current if current and current.connection == effect.connection else None
        if isinstance(effect, Refuse):
            opened.was_refused = True
            return opened
        if current is not None:
            current.finish(replaced_status(effect.connection, current.connection))
        if opened.is_closed:
            self._by_session.pop(effect.session, None)
        else:
            self._by_session[effect.session] = opened
        return opened

    def end(self) -> None:
        """End every connection: no turn will come."""
        self._has_ended = True
        for outbox in (*self._by_session.values(), *self._opened.values()):
            outbox.finish(ended_status())


def _put(outbox: Outbox, effect: _AgentEffect) -> None:
    match effect:
        case Send(desired=desired):
            outbox.desired = effect
            outbox.runs_workers = isinstance(desired, DesiredRun)
        case Acknowledge(sequence=sequence):
            outbox.acknowledged = max(outbox.acknowledged, sequence)
            return
        case Welcome():
            outbox.welcome = effect
            outbox.is_open = True
        case Notify() if agent_pb2.CAPABILITY_NOTICES not in outbox.terms.capabilities:
            return
        case Notify():
            outbox.notify = effect
        case Refuse(refusal=refusal):
            outbox.finish(refusal_status(refusal))
        case Disconnect(has_left=True):
            outbox.has_left = True
            outbox.welcome = outbox.desired = outbox.notify = None  # it has nothing more to do
        case Disconnect():
            outbox.finish(lost_status())
    outbox.wake.set()
