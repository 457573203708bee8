"""What may happen next in a small world.

A move is one thing that happens to one process: a message arrives, a helper answers, a worker ends,
a deadline expires, or a mishap. Messages are on their way until they are chosen. Time passes when
nothing is on its way, and then to the next deadline of anybody; only EARLY lets it overtake.

A new mishap is a member of `Mishap`, a line here that says when it can happen, and a case in
`Play._mishap` that says what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.core import step as agent_core
from rallypoint.server.core.state.deadlines import DeadlineKey, DeadlineKind
from sim.small.messages import Down
from sim.small.small import NEVER_MS, Bounds, Mishap, Small, is_heard
from sim.world.wire import Hangup


class Kind(Enum):
    """What happens in a move that is no mishap."""

    UP = "arrives up"  # the oldest message of a stream reaches the coordinator
    DOWN = "arrives down"  # the oldest message of a stream reaches the agent
    ANSWER = "helper says"  # the oldest answer of the helper reaches its agent
    SWEEP = "is swept"  # the helper has killed what was left
    CONNECT = "connects"
    START = "agent starts"
    SERVE = "coordinator starts"
    TIME = "time passes"  # the next deadline expires
    DONE = "exits 0"  # a worker ends with 0
    OBEY = "dies of TERM"  # a worker that was signalled ends


class Move(NamedTuple):
    """One thing that may happen."""

    what: Kind | Mishap
    site: int = -1
    """The site, if the move is about one."""
    place: int = 0
    """The number of the stream, worker or answer."""


SOON = (
    Kind.UP,
    Kind.DOWN,
    Kind.ANSWER,
    Kind.SWEEP,
    Kind.CONNECT,
    Kind.SERVE,
)
"""What happens before time passes, unless a mishap lets it wait."""


def moves_of(small: Small, bounds: Bounds) -> list[Move]:
    """Return everything that may happen next, in an order that depends on nothing else."""
    moves = list(_moves_on_the_way(small))
    is_busy = any(move.what in SOON for move in moves)
    has_deadline = bool(due(small))
    if has_deadline and not is_busy:
        moves.append(Move(Kind.TIME))
    moves += _moves_of_workers(small, bounds)
    if small.faults > 0:
        possible = _mishaps(small, bounds, can_be_early=is_busy and has_deadline)
        moves += (move for move in possible if move.what in bounds.kinds)
    return moves


def _moves_on_the_way(small: Small) -> Iterator[Move]:
    server = small.coordinator
    if server is None:
        yield Move(Kind.SERVE)
    for place, stream in enumerate(small.streams):
        if stream.held_until_ms > small.now_ms:
            continue
        if stream.up and server is not None and server.life == stream.life:
            yield Move(Kind.UP, stream.site, place)
        if stream.down and stream.agent_holds:
            yield Move(Kind.DOWN, stream.site, place)
    for number in range(len(small.sites)):
        yield from _moves_of_site(small, number)


def _moves_of_site(small: Small, number: int) -> Iterator[Move]:
    site = small.sites[number]
    if site.agent is None and site.may_start:
        yield Move(Kind.START, number)
    if site.agent is not None:
        if site.answers:
            yield Move(Kind.ANSWER, number)
            # The report of an exit waits for the rest of standard error, so others may overtake it,
            # but not the end of the sweep.
            later = next(
                (
                    place
                    for place, answer in enumerate(site.answers)
                    if not isinstance(answer, agent_inputs.WorkerEnded | agent_inputs.Swept)
                ),
                0,
            )
            if later:
                yield Move(Kind.ANSWER, number, later)
        if site.sweep:
            yield Move(Kind.SWEEP, number)
        if site.retry_ms <= small.now_ms and _is_trying(small, number):
            yield Move(Kind.CONNECT, number)


def _moves_of_workers(small: Small, bounds: Bounds) -> Iterator[Move]:
    for number, site in enumerate(small.sites):
        for place, worker in enumerate(site.workers):
            if worker.is_alive:
                if bounds.exits:
                    yield Move(Kind.DONE, number, place)
                if worker.signalled:
                    yield Move(Kind.OBEY, number, place)


def _mishaps(small: Small, bounds: Bounds, *, can_be_early: bool) -> Iterator[Move]:
    if can_be_early:
        yield Move(Mishap.EARLY)
    if small.coordinator is not None:
        yield Move(Mishap.CRASH)
    yield from _mishaps_of_streams(small)
    for number in range(len(small.sites)):
        yield from _mishaps_of_site(small, bounds, number)


def _mishaps_of_streams(small: Small) -> Iterator[Move]:
    for place, stream in enumerate(small.streams):
        if stream.agent_holds:
            yield Move(Mishap.DROP, stream.site, place)
            if not is_ended(stream.down):
                yield Move(Mishap.SEVER, stream.site, place)
        if len(stream.down) > 1 and _is_replaced(*stream.down[:2]):
            yield Move(Mishap.SKIP, stream.site, place)


def _mishaps_of_site(small: Small, bounds: Bounds, number: int) -> Iterator[Move]:
    site, server = small.sites[number], small.coordinator
    node = None if server is None else server.state.nodes.get(site.session)
    if node is not None and node.attached and (is_heard(small, number) or not bounds.fence_ms):
        yield Move(Mishap.SILENCE, number)
    for place, worker in enumerate(site.workers):
        if worker.is_alive:
            yield Move(Mishap.FAIL, number, place)
            yield Move(Mishap.KILL, number, place)
    if site.agent is not None:
        yield Move(Mishap.CRASH_AGENT, number)
        if site.agent.ending is None:
            yield Move(Mishap.TERMINATE, number)
            if node is not None and node.drain is None:
                yield Move(Mishap.DRAIN, number)
        if site.answers and isinstance(site.answers[0], agent_inputs.WorkerStarted):
            yield Move(Mishap.NO_START, number)


def _is_replaced(first: Down | Hangup, second: Down | Hangup) -> bool:
    """Return whether the next order, a little earlier, would have replaced this one."""
    if isinstance(first, Hangup) or isinstance(second, Hangup):
        return False
    is_order = first.desired is not None and first.welcome is None
    return is_order and second.desired is not None


def is_ended(messages: tuple[object, ...]) -> bool:
    """Return whether nothing more can be sent."""
    return bool(messages) and isinstance(messages[-1], Hangup)


def _is_trying(small: Small, number: int) -> bool:
    """Return whether an agent wants a connection and a coordinator accepts it."""
    site = small.sites[number]
    if small.coordinator is None or site.agent is None or site.is_closed:
        return False
    return not any(stream.site == number and stream.agent_holds for stream in small.streams)


def fence_due_ms(small: Small, number: int) -> int | None:
    """Return when the fence makes a site's helper kill everything there, or None."""
    site = small.sites[number]
    if site.agent is None or is_heard(small, number):
        return None
    if not any(worker.is_alive for worker in site.workers):
        return None
    return site.fence_at_ms


def due(small: Small) -> tuple[int, int, DeadlineKey | None] | None:
    """Return the earliest deadline: when, whose (-1: the coordinator's), and its key."""
    due_times: list[tuple[int, int, DeadlineKey | None]] = []
    if small.coordinator is not None:
        first = small.coordinator.state.deadlines.first()
        if first is not None and first[0] < NEVER_MS and first[1][0] is not DeadlineKind.FORGET:
            due_times.append((small.coordinator.began_ms + first[0], -1, first[1]))
    for stream in small.streams:
        if stream.held_until_ms > small.now_ms:
            due_times.append((stream.held_until_ms, stream.site, None))
    for number in range(len(small.sites)):
        due_times += ((at_ms, number, None) for at_ms in _due_at_site(small, number))
    return min(due_times, key=lambda one: one[:2], default=None)


def _due_at_site(small: Small, number: int) -> Iterator[int]:
    site = small.sites[number]
    agent = site.agent
    if agent is None:
        return
    if agent.fence_ms and is_heard(small, number):
        agent = replace(agent, fence_ms=0)  # heartbeats keep moving its end
    fence_ms = fence_due_ms(small, number)
    for at_ms in (agent_core.next_deadline_ms(agent), site.exit_by_ms, fence_ms):
        if at_ms is not None:
            yield at_ms
    if site.retry_ms > small.now_ms and _is_trying(small, number):
        yield site.retry_ms
