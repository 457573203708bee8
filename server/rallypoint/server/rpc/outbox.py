"""What waits to be sent on each session: replaced, never queued.

There is one place for each kind of message, so a peer that does not read costs one outbox and
nothing more, however much changes meanwhile: the newest desired state takes the place of one that
was not sent yet, acknowledgements add up. Order: a refusal ends everything; else Welcome, desired
state, notices, answer to a heartbeat.

Acknowledgements of reports ride on whatever is sent next, at the latest on the answer to the next
heartbeat: a message of their own would double what a round costs, and an agent that has to say
something again because of a break says it with its number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from google.rpc.status_pb2 import Status

from rallypoint.server.core.effects import (
    Acknowledge,
    DesiredRun,
    Disconnect,
    Effect,
    JobChanged,
    Notify,
    Refuse,
    Send,
    Welcome,
)
from rallypoint.server.core.model import JobId, JobSpec, SessionId
from rallypoint.server.core.state import State
from rallypoint.server.core.timing import NOTHING_ASKED
from rallypoint.server.rpc.errors import lost_status, refusal_status


@dataclass(slots=True)
class Outbox:
    """What one connection has still to be told."""

    session: SessionId
    connection: int
    spec: JobSpec = NOTHING_ASKED
    """The agent's: what it may ask for are its heartbeats and its lease."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    welcome: Welcome | None = None
    desired: Send | None = None
    notify: Notify | None = None
    acknowledged: int = 0
    """Highest report to acknowledge."""
    heartbeat: int = 0
    """Highest heartbeat seen."""
    answered: int = 0
    """Highest heartbeat that was answered."""
    interval_ms: int = 0
    """Time between heartbeats that the agent was told last."""
    runs_workers: bool = False
    """The desired state sent last is Run: nobody there has to be told what the job waits for."""
    end: Status | None = None
    """Set when the stream has to end."""
    ended: bool = False
    """The peer's side of the stream has ended."""

    def acknowledge_heartbeat(self, number: int) -> None:
        """Answer a heartbeat."""
        self.heartbeat = max(self.heartbeat, number)
        self.wake.set()

    def finish(self, status: Status) -> None:
        """End the stream with `status`."""
        if self.end is None:
            self.end = status
        self.wake.set()


class Outboxes:
    """The outbox of every session's newest connection, and the watchers of every job."""

    def __init__(self) -> None:
        """Begin without any."""
        self._by_session: dict[SessionId, Outbox] = {}
        self._watchers: dict[JobId, set[asyncio.Event]] = {}
        self.epoch = 0
        """The coordinator's epoch as of the last durable turn."""

    def open(self, session: SessionId, connection: int, spec: JobSpec = NOTHING_ASKED) -> Outbox:
        """Return the outbox of a new connection; an older one of the session is ended, and so
        is this one when a newer one is there already."""
        older = self._by_session.get(session)
        outbox = Outbox(session, connection, spec)
        if older is None or older.connection < connection:
            if older is not None:
                older.finish(lost_status())
            self._by_session[session] = outbox
        else:
            outbox.finish(lost_status())
        return outbox

    def close(self, outbox: Outbox) -> None:
        """Forget a connection that has ended."""
        if self._by_session.get(outbox.session) is outbox:
            del self._by_session[outbox.session]

    def watch(self, job_id: JobId) -> asyncio.Event:
        """Return an event that is set whenever the job changes; give it back to `unwatch`."""
        event = asyncio.Event()
        self._watchers.setdefault(job_id, set()).add(event)
        return event

    def unwatch(self, job_id: JobId, event: asyncio.Event) -> None:
        """Stop setting `event`."""
        watchers = self._watchers.get(job_id, set())
        watchers.discard(event)
        if not watchers:
            self._watchers.pop(job_id, None)

    def carry_out(
        self, effects: Sequence[Effect], changed: Collection[JobId], state: State, now_ms: int
    ) -> None:
        """Put the effects of a durable turn where the streams find them."""
        self.epoch = state.epoch
        for job_id in changed:
            for event in self._watchers.get(job_id, ()):
                event.set()
        for effect in effects:
            if isinstance(effect, JobChanged):
                continue  # for the log; its job is among `changed`
            outbox = self._by_session.get(effect.session)
            if outbox is None:
                continue
            _put(outbox, effect)


def _put(
    outbox: Outbox, effect: Welcome | Send | Notify | Acknowledge | Refuse | Disconnect
) -> None:
    match effect:
        case Send(desired=desired):
            outbox.desired = effect
            outbox.runs_workers = isinstance(desired, DesiredRun)
        case Acknowledge(sequence=sequence):
            outbox.acknowledged = max(outbox.acknowledged, sequence)
            return
        case Welcome():
            if effect.connection == outbox.connection:
                outbox.welcome = effect
        case Notify():
            outbox.notify = effect
        case Refuse(connection=connection, refusal=refusal):
            if connection == outbox.connection:
                outbox.finish(refusal_status(refusal))
        case Disconnect():
            outbox.finish(lost_status())
    outbox.wake.set()
