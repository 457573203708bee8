"""Converts milliseconds to google.protobuf.Duration and Timestamp, and back."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp


def to_duration(ms: int) -> Duration:
    """Return `ms` (0 or more) as a Duration."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def to_optional_duration(ms: int | None) -> Duration | None:
    """Return `ms` as a Duration; None for a field that stays absent."""
    return None if ms is None else to_duration(ms)


def to_ms(duration: Duration) -> int:
    """Return a Duration in whole milliseconds, rounded down."""
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def set_ms(duration: Duration, ms: int) -> None:
    """Change a Duration to `ms` (0 or more)."""
    duration.seconds, duration.nanos = ms // 1000, ms % 1000 * 1_000_000


def to_timestamp(unix_ms: int) -> Timestamp:
    """Return a Unix time in ms (0 to the year 9999) as a Timestamp."""
    return Timestamp(seconds=unix_ms // 1000, nanos=unix_ms % 1000 * 1_000_000)


def to_unix_ms(timestamp: Timestamp) -> int:
    """Return a Timestamp as Unix time in whole milliseconds, rounded down."""
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
