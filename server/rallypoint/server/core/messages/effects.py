"""What the shell has to do after a step.

The shell appends all records of a turn, and then carries out its effects in their order. So no
effect is visible before the decision behind it is in the journal.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.barrier import BarrierKey, Ended
from rallypoint.server.core.model.desired import Desired
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.keyspace import Answer, Change
from rallypoint.server.core.model.round import Notice


class Welcome(Struct, frozen=True):
    """Answer the Hello of this connection."""

    session: SessionId
    connection: int
    name: NodeName
    run: int
    arguments_differ_from: NodeName | None = None
    """Node of the same role and program with other arguments."""


class Send(Struct, frozen=True):
    """Send the node its desired state; a newer one may replace it before it is sent."""

    session: SessionId
    revision: int
    desired: Desired
    drain_left_ms: int = 0
    """Time until the end of the drain in `desired`; 0 without one."""


class Acknowledge(Struct, frozen=True):
    """The consequences of the report with this sequence are in the journal."""

    session: SessionId
    sequence: int


class Notify(Struct, frozen=True):
    """Send the node its notices; they replace the ones before."""

    session: SessionId
    notices: tuple[tuple[Notice, int], ...]
    """Each with the time left until it happens at the latest, in ms."""


class Refuse(Struct, frozen=True):
    """End this connection with the status of the refusal."""

    session: SessionId
    connection: int
    refusal: Refusal


class Disconnect(Struct, frozen=True):
    """End the connection of this session, which is over."""

    session: SessionId
    has_left: bool = False
    """Whether the node left with a Goodbye; otherwise it counts as lost."""


class JobChanged(Struct, frozen=True):
    """The job has changed for its readers."""

    job_id: JobId
    reason: str
    """A constant past-tense event name for the log."""
    facts: tuple[tuple[str, str | int], ...] = ()
    """The facts that the log line carries."""


class BarrierOver(Struct, frozen=True):
    """A generation of a barrier was released or has failed; everyone who waits for it learns it."""

    key: BarrierKey
    ended: Ended


class WriteAnswered(Struct, frozen=True):
    """A request to change keys has its answer; those who wait for the keys learn the changes."""

    job_id: JobId
    answer_id: str
    """Of the call."""
    answer: Answer
    changes: tuple[Change, ...] = ()
    """What this attempt has changed."""


Effect = (
    Welcome
    | Send
    | Acknowledge
    | Notify
    | Refuse
    | Disconnect
    | JobChanged
    | BarrierOver
    | WriteAnswered
)
