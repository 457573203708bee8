"""Planted bugs of relays: each replaces one function of the product, and a rule must notice it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rallypoint.relay.uplink import Uplink
from rallypoint.server.rpc.relays.seats import Seats
from rallypoint.v1 import agent_service_pb2 as agent_pb2

Patch = tuple[Any, str, Callable[..., Any]]
"""Class, name, and replacement."""


def _take_a_lost_relay_for_lost_agents() -> Patch:
    """Give the agents of a relay that is gone no more time than agents that are gone."""

    def remove_all(self: Seats) -> Any:
        ended = [self.remove(seat, is_relay=False) for seat in tuple(self._seats.values())]
        return [one for one in ended if one is not None]

    return Seats, "remove_all", remove_all


def _forget_to_wake_the_writer() -> Patch:
    """Note that there is something to send, and let it wait for the next wake-up."""

    def note_due(self: Seats, number: int) -> None:
        self._due[number] = None

    return Seats, "note_due", note_due


def _forget_to_wake_the_uplink() -> Patch:
    """Let what an agent says wait for the next sign of life."""

    def add(self: Uplink, entry: agent_pb2.RelayedRequest) -> None:
        self._outgoing.add(entry)

    return Uplink, "_add", add


BUGS: dict[str, Callable[[], Patch]] = {
    "take a lost relay for lost agents": _take_a_lost_relay_for_lost_agents,
    "forget to wake the writer": _forget_to_wake_the_writer,
    "forget to wake the uplink": _forget_to_wake_the_uplink,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the context is open."""
    owner, attribute, replacement = BUGS[name]()
    real = inspect.getattr_static(owner, attribute)
    setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        setattr(owner, attribute, real)
