"""Milliseconds here, google.protobuf.Duration on the wire."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration


def to_duration(ms: int) -> Duration:
    """Return `ms` (0 or more) as a Duration."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def to_ms(duration: Duration) -> int:
    """Return a Duration in whole milliseconds, rounded down."""
    return duration.seconds * 1000 + duration.nanos // 1_000_000
