"""Checks that messages have in common."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from rallypoint.base.limits import DURATION_MS_MAX, JOB_ID_BYTES_MAX, NAME_BYTES_MAX
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.wire.durations import to_ms


class InvalidMessage(Exception):
    """A message breaks the contract."""

    def __init__(self, path: str, problem: str) -> None:
        """Name the field, and what is wrong with it."""
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def require(holds: bool, path: str, problem: str) -> None:
    """Refuse the message unless `holds`.

    Raises:
        InvalidMessage: when it does not.
    """
    if not holds:
        raise InvalidMessage(path, problem)


def to_job_id(job_id: str, path: str) -> JobId:
    """Return a job id that can be used as a key everywhere."""
    require(bool(job_id), path, "must not be empty")
    fits = len(job_id.encode()) <= JOB_ID_BYTES_MAX
    require(fits, path, f"must have at most {JOB_ID_BYTES_MAX} bytes")
    require(job_id.isprintable(), path, "must be printable")
    return JobId(job_id)


def to_node_name(name: str, path: str) -> NodeName:
    """Return the name of a node."""
    fits = 0 < len(name.encode()) <= NAME_BYTES_MAX
    require(fits, path, f"must have 1 to {NAME_BYTES_MAX} bytes")
    require(name.isprintable() and " " not in name, path, "must be printable, without spaces")
    return NodeName(name)


def to_limited_ms(duration: Duration, path: str) -> int:
    """Return a duration in ms, 0 to 30 days."""
    ms = to_ms(duration)
    require(0 <= ms <= DURATION_MS_MAX, path, "must be between 0 and 30 days")
    return ms


def limit_text(text: str, chars_max: int) -> str:
    """Return the beginning of a text. A long text is cut, not refused."""
    return text[:chars_max]
