"""What a call can fail with: one class for each thing that a caller may want to handle.

The text is the coordinator's own. Importing this module loads no gRPC.
"""

from __future__ import annotations

from rallypoint.client.values import BreakReason, Participants


class RallypointError(Exception):
    """A call failed. The base of all errors of the clients."""

    status = "UNKNOWN"
    """Name of the gRPC status with which the call ended."""
    refusal = ""
    """Constant of the refusal in the contract, such as "UNKNOWN_JOB"; empty: the coordinator gave
    none."""

    def __init__(self, text: str, *, status: str = "") -> None:
        """Keep the text for people, and the status if it is not that of the class."""
        super().__init__(text)
        self.status = status or type(self).status


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

    def __init__(
        self,
        text: str,
        *,
        name: str,
        generation: int,
        reason: BreakReason,
        missing: Participants,
        missing_count: int,
        lost: Participants,
        status: str = "",
    ) -> None:
        """Keep what the coordinator knows.

        Args:
            text: for people.
            name: of the barrier.
            generation: that failed.
            reason: why.
            missing: the first 64 that had not arrived, as far as their names are known.
            missing_count: how many had not arrived.
            lost: the first 64 that cannot arrive any more.
            status: name of the gRPC status.
        """
        super().__init__(text, status=status)
        self.name = name
        self.generation = generation
        self.reason = reason
        self.missing = missing
        self.missing_count = missing_count
        self.lost = lost


class BarrierMismatch(RallypointError):
    """The others expect other participants at a barrier, or another generation is open."""

    status = "FAILED_PRECONDITION"

    def __init__(self, text: str, *, name: str, expected: str, actual: str) -> None:
        """Keep the name of the barrier, and in words what the others and the caller expect."""
        super().__init__(text)
        self.name = name
        self.expected = expected
        self.actual = actual


class AlreadyArrived(RallypointError):
    """The participant waits at this barrier already, with another call."""

    status = "ALREADY_EXISTS"


class Stale(RallypointError):
    """The caller belongs to something that is over; it is about to be stopped."""

    status = "ABORTED"

    def __init__(self, text: str, *, expected: int, actual: int) -> None:
        """Keep the current number and the caller's."""
        super().__init__(text)
        self.expected = expected
        self.actual = actual


class StaleRound(Stale):
    """The caller's round is over."""


class StaleRun(Stale):
    """The caller's run is over."""


class KeysMissing(RallypointError):
    """Keys that were waited for do not exist."""

    status = "DEADLINE_EXCEEDED"

    def __init__(self, text: str, *, keys: tuple[str, ...], missing_count: int) -> None:
        """Keep the first of the keys, and how many do not exist."""
        super().__init__(text)
        self.keys = keys
        self.missing_count = missing_count


class KeysCompacted(RallypointError):
    """Changes since the wanted revision are not remembered. List the keys, and watch from there."""

    status = "OUT_OF_RANGE"

    def __init__(self, text: str, *, oldest_revision: int, epoch: int) -> None:
        """Keep the first revision that can be watched, and the epoch of the coordinator."""
        super().__init__(text)
        self.oldest_revision = oldest_revision
        self.epoch = epoch


class EventsCompacted(RallypointError):
    """Events after the wanted sequence are lost, or it is not one of this coordinator's."""

    status = "OUT_OF_RANGE"

    def __init__(self, text: str, *, oldest_sequence: int, epoch: int) -> None:
        """Keep from which event on none is lost, and the epoch of the coordinator."""
        super().__init__(text)
        self.oldest_sequence = oldest_sequence
        self.epoch = epoch


class RevisionCompacted(RallypointError):
    """Jobs may have been deleted since the wanted revision. List the jobs, and watch from there."""

    status = "OUT_OF_RANGE"

    def __init__(self, text: str, *, oldest_revision: int, epoch: int) -> None:
        """Keep after which revision a watch can begin, and the epoch of the coordinator."""
        super().__init__(text)
        self.oldest_revision = oldest_revision
        self.epoch = epoch


class LimitReached(RallypointError):
    """A limit of the coordinator is reached."""

    status = "RESOURCE_EXHAUSTED"

    def __init__(
        self,
        text: str,
        *,
        limit: str,
        value: int,
        retry_after_s: float | None = None,
        kind: int = 0,
    ) -> None:
        """Keep which limit it is, its value, and when another attempt may succeed.

        Args:
            text: what to show.
            limit: the limit in words.
            value: the limit's.
            retry_after_s: when another attempt may succeed; None: it will probably fail, too.
            kind: a `LimitKind` of the contract; 0: not known.
        """
        super().__init__(text)
        self.limit = limit
        self.value = value
        self.kind = kind
        self.retry_after_s = retry_after_s


class UnknownJob(RallypointError):
    """There is no such job."""

    status = "NOT_FOUND"

    def __init__(self, text: str, *, job_id: str) -> None:
        """Keep the name in the request."""
        super().__init__(text)
        self.job_id = job_id


class UnknownNode(RallypointError):
    """No such node is connected to the job."""

    status = "NOT_FOUND"

    def __init__(self, text: str, *, job_id: str, node_name: str) -> None:
        """Keep the names in the request."""
        super().__init__(text)
        self.job_id = job_id
        self.node_name = node_name


class InvalidRequest(RallypointError):
    """A value in the request is out of range."""

    status = "INVALID_ARGUMENT"

    def __init__(self, text: str, *, field: str = "") -> None:
        """Keep the path of the field; empty: it is no single one."""
        super().__init__(text)
        self.field = field


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
