"""Knows whether this process stood still a moment ago.

What then waits in its connections may be old: the client has given the call up, has asked another
coordinator, and has gone on since. Pure: the time is an argument.
"""

from __future__ import annotations

STILL_S = 1.0
"""Time between two looks, in seconds, that is too long. Clients give a call up after 2 s."""
WARY_S = 1.0
"""How long what waited meanwhile may still arrive, in seconds."""


class Standstill:
    """Is looked at often; a long time without a look means that the process stood still."""

    def __init__(self, now_s: float) -> None:
        """Begin to look."""
        self._seen_s = now_s
        self._wary_until_s = now_s

    def look(self, now_s: float) -> bool:
        """Return whether what arrives now may be old."""
        if now_s - self._seen_s > STILL_S:
            self._wary_until_s = now_s + WARY_S
        self._seen_s = now_s
        return now_s < self._wary_until_s
