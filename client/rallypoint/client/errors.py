"""What a call can fail with: one class for each thing that a caller may want to handle.

The text is the coordinator's own. Importing this module loads no gRPC.
"""

from __future__ import annotations

from typing import Any

from rallypoint.client.values import BreakReason, Participants


class RallypointError(Exception):
    """A call failed. The base of all errors of the clients."""

    status = "UNKNOWN"
    """Name of the gRPC status with which the call ended."""
    refusal = ""
    """Constant of the refusal in the contract, such as "UNKNOWN_JOB"; empty: the coordinator gave
    none."""

    def __init__(self, text: str, *, status: str = "", **facts: Any) -> None:
        """Keep the text for people, the status if it is not that of the class, and its facts.

        Args:
            text: for people.
            status: name of the gRPC status; empty: that of the class.
            facts: a value for each attribute that the class declares.
        """
        super().__init__(text)
        self.status = status or type(self).status
        vars(self).update(facts)


class Unavailable(RallypointError):
    """No coordinator could be reached, or none answered, within the limit of the call."""

    status = "UNAVAILABLE"


class HandshakeFailed(Unavailable):
    """TLS keeps the client from a coordinator that it has never reached. The text says what to do.

    After a first answer this counts as an outage: certificates are about to be renewed then.
    """


class Forgotten(RallypointError):
    """The coordinator has started again without its memory: an earlier attempt may have counted."""

    status = "DATA_LOSS"


class BarrierBroken(RallypointError):
    """A generation of a barrier has failed, for all its participants."""

    status = "ABORTED"
    name: str
    """Of the barrier."""
    generation: int
    """That failed."""
    reason: BreakReason
    missing: Participants
    """The first 64 that had not arrived, as far as their names are known."""
    missing_count: int
    """How many had not arrived."""
    lost: Participants
    """The first 64 that cannot arrive any more."""


class BarrierMismatch(RallypointError):
    """The others expect other participants at a barrier, or another generation is open."""

    status = "FAILED_PRECONDITION"
    name: str
    """Of the barrier."""
    expected: str
    """What the others expect, in words."""
    actual: str
    """What the caller expects."""


class AlreadyArrived(RallypointError):
    """The participant waits at this barrier already, with another call."""

    status = "ALREADY_EXISTS"


class Stale(RallypointError):
    """The caller belongs to something that is over; it is about to be stopped."""

    status = "ABORTED"
    expected: int
    """The current number."""
    actual: int
    """The caller's."""


class StaleRound(Stale):
    """The caller's round is over."""


class StaleRun(Stale):
    """The caller's run is over."""


class KeysMissing(RallypointError):
    """Keys that were waited for do not exist."""

    status = "DEADLINE_EXCEEDED"
    keys: tuple[str, ...]
    """The first of them."""
    missing_count: int
    """How many do not exist."""


class KeysCompacted(RallypointError):
    """Changes since the wanted revision are not remembered. List the keys, and watch from there."""

    status = "OUT_OF_RANGE"
    oldest_revision: int
    """The first that can be watched."""
    epoch: int
    """Of the coordinator."""


class EventsCompacted(RallypointError):
    """Events after the wanted sequence are lost, or it is not one of this coordinator's."""

    status = "OUT_OF_RANGE"
    oldest_sequence: int
    """From this one on none is lost."""
    epoch: int
    """Of the coordinator."""


class RevisionCompacted(RallypointError):
    """Jobs may have been deleted since the wanted revision. List the jobs, and watch from there."""

    status = "OUT_OF_RANGE"
    oldest_revision: int
    """A watch can begin after it."""
    epoch: int
    """Of the coordinator."""


class LimitReached(RallypointError):
    """A limit of the coordinator is reached."""

    status = "RESOURCE_EXHAUSTED"
    limit: str
    """In words."""
    value: int
    """The limit's."""
    retry_after_s: float | None = None
    """When another attempt may succeed; None: it will probably fail, too."""
    kind: int = 0
    """A `LimitKind` of the contract; 0: not known."""


class UnknownJob(RallypointError):
    """There is no such job."""

    status = "NOT_FOUND"
    job_id: str
    """In the request."""


class UnknownNode(RallypointError):
    """No such node is connected to the job."""

    status = "NOT_FOUND"
    job_id: str
    """In the request, as the name below."""
    node_name: str


class InvalidRequest(RallypointError):
    """A value in the request is out of range."""

    status = "INVALID_ARGUMENT"
    field: str = ""
    """Its path; empty: it is no single one."""


class NotAllowed(RallypointError):
    """The coordinator does not know the caller, or does not allow it this call, or this job."""

    status = "PERMISSION_DENIED"


class Refused(RallypointError):
    """The state of the job does not allow the call."""

    status = "FAILED_PRECONDITION"


class Unsupported(RallypointError):
    """The coordinator does not know this call: it is older than the client."""

    status = "UNIMPLEMENTED"


class InternalError(RallypointError):
    """A bug of the coordinator; its log has the cause."""

    status = "INTERNAL"


class ClientClosed(RallypointError):
    """The client was closed, or this process is a fork in which it cannot work."""

    status = "CANCELLED"
