"""How long a call waits on the server: always less than its caller does."""

from __future__ import annotations

MARGIN_MS_MAX = 1_000
"""A wait ends so much earlier than its call at most, so that the answer arrives in time."""
MARGIN_MS_MIN = 250
"""A turn may come that late without counting as a stall."""
MARGIN_PART = 10
"""Or one part in so many of the time that the call has left."""


def limit_wait_ms(wanted_ms: int, left_s: float | None) -> int:
    """Return how long a call waits at most, in ms, 1 or more.

    Args:
        wanted_ms: what the caller asks for.
        left_s: seconds until the deadline of the call; None without one.
    """
    if left_s is None:
        return max(1, wanted_ms)
    left_ms = int(left_s * 1000)
    most_ms = left_ms - min(MARGIN_MS_MAX, max(MARGIN_MS_MIN, left_ms // MARGIN_PART))
    return max(1, min(wanted_ms, max(most_ms, left_ms // 2)))
