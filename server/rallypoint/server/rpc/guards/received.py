"""What has arrived on the call that is served."""

from __future__ import annotations

from contextvars import ContextVar

from msgspec import Struct


class Received(Struct):
    """What has arrived on a call."""

    size: int = 0
    """Bytes of its latest message."""
    is_held: bool = True
    """The message takes memory until the call has ended."""


RECEIVED: ContextVar[Received | None] = ContextVar("received", default=None)
"""Of the call that is served; None: no one counts."""
