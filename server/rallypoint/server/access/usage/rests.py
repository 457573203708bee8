"""Lets a refused call wait for its answer where its host is refused without end.

A faulty program calls again as soon as it was refused. Each call takes time that all jobs share, so
a host whose calls are refused too often gets its answers late, and calls less often. Nothing is
refused that would not be, and a host's other calls do not wait.
"""

from __future__ import annotations

import time
from asyncio import sleep
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial

from msgspec import Struct, field

from rallypoint.server.access.usage.allowances import Allowance, find_latest
from rallypoint.server.contract import limits

REST_S_MAX = 1.0
"""Longest wait for the answer if few wait: clients that try again wait about as long by themselves.
"""
ENDS_PER_S_MAX = 128
"""Each call that waits already lets the next one wait longer, so that no more than this many of a
host end in a second, however many it makes at once. One with a large message counts as more."""
BYTES_PER_REFUSAL = 65_536
"""So many bytes of a refused message count as one more refusal."""


class Received(Struct):
    """What has arrived on a call."""

    size: int = 0
    """Bytes of its latest message."""
    is_held: bool = True
    """The message takes memory until the call has ended."""


RECEIVED: ContextVar[Received | None] = ContextVar("received", default=None)
"""Of the call that is served; None: no one counts."""


class _Host(Struct):
    """What a host may still do."""

    refusals: Allowance = field(default_factory=Allowance)
    """That are answered at once now."""
    resting: int = 0
    """Calls that wait for their answer."""
    resting_cost: float = 0.0
    """Refusals as which they count."""
    resting_bytes: int = 0
    """Of their messages, which their handlers may still have."""


class Rests:
    """The refused calls of all hosts."""

    def __init__(self) -> None:
        """Begin without any."""
        self._hosts: dict[str, _Host] = {}
        """The one that was refused last is the last one; at most `HOSTS_MAX`."""

    async def rest(self, host: str, received: Received) -> None:
        """Count a refused call; wait until it may be answered.

        Args:
            host: as `host_of` names it.
            received: what has arrived on the call.
        """
        used = find_latest(self._hosts, host, _Host, limits.HOSTS_MAX)
        held = received.size if received.is_held else 0
        cost = 1 + received.size / BYTES_PER_REFUSAL
        wait_s = _wait_s(used.refusals, cost, time.monotonic())
        is_full = used.resting >= limits.RESTING_PER_HOST_MAX
        if wait_s <= 0 or is_full or used.resting_bytes + held > limits.RESTING_BYTES_PER_HOST_MAX:
            return
        wait_s += used.resting_cost / ENDS_PER_S_MAX
        used.resting += 1
        used.resting_cost += cost
        used.resting_bytes += held
        try:
            await sleep(wait_s)
        finally:
            used.resting -= 1
            used.resting_cost -= cost
            used.resting_bytes -= held


def _wait_s(refusals: Allowance, cost: float, now_s: float) -> float:
    """Count refusals; return how long the answer has to wait, in seconds."""
    per_s = limits.REFUSALS_PER_S_MAX
    left = refusals.count(now_s, per_s, limits.REFUSALS_AT_ONCE_MAX)
    # What it owes is limited, so that it is forgotten as soon as the host behaves.
    refusals.left = max(left - cost, -per_s * REST_S_MAX)
    return -refusals.left / per_s


_REST: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("rest", default=None)
"""Lets the call that is served rest; None: no call is served."""


def bind_rest(rests: Rests, host: str, received: Received) -> None:
    """Let `rest` count from now on for the host of a caller."""
    _REST.set(partial(rests.rest, host, received))


async def rest() -> None:
    """Count a refusal of the call that is served; wait until it may be answered."""
    wait = _REST.get()
    if wait is not None:
        await wait()
