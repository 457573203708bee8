"""Collects what calls may leave, before it is much.

A coordinator lets the garbage collector run seldom, because it leaves hardly any cyclic garbage.
What remains of a call is gRPC's own: a few objects, and the metadata. A refused call should leave
no more: its exceptions let go of their frames, and so of the request. If a library keeps one of
them all the same, its bytes have been counted here.
"""

from __future__ import annotations

import gc

LEFT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of metadata, and of the requests of refused calls, between two collections."""
GENERATION = 1
"""The oldest generation that is collected. Older objects are of calls that lasted long, and of the
state: to look at those takes 0.6 s with 4,096 nodes."""


class Garbage:
    """What calls may have left."""

    def __init__(self) -> None:
        """Begin without any."""
        self._bytes = 0

    def note_left(self, size: int) -> None:
        """Note so many bytes that a call may have left."""
        self._bytes += size
        if self._bytes >= LEFT_BYTES_MAX:
            self._bytes = 0
            gc.collect(GENERATION)


def forget_frames(error: BaseException) -> None:
    """Let an exception, and those that led to it, let go of the frames that they went through."""
    queue, seen = [error], {id(error)}
    while queue:
        one = queue.pop()
        others = list(one.exceptions) if isinstance(one, BaseExceptionGroup) else []
        others += [other for other in (one.__context__, one.__cause__) if other is not None]
        queue += [other for other in others if id(other) not in seen]
        seen |= set(map(id, others))
        one.__traceback__ = one.__context__ = one.__cause__ = None
