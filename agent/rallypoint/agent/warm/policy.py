"""Decides when standbys are made, weighed and ended. Pure.

Rules:
  * They are made one after another: 10 s after the workers of a round have started, if all of them
    still live and nothing announces a change; on a node that waits for a round after 1 s. They are
    never made while a round starts or stops.
  * None is made while the machine swaps: while pages were swapped out between two looks, one when
    the calm begins and one when it has lasted.
  * A start takes or ends all of them.
  * Together they may use so much memory; beyond it the last ones are ended, and not made again.
  * After three failures in a row, the standby of a local rank is not made again in this run.

`NEEDS` lists the phases in which something may be made, and how long each must have lasted.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.warm.phase import Phase

FAILURES_MAX = 3
"""Failures in a row after which a standby is not made again."""
WEIGH_EVERY_MS = 60_000
"""How often the memory of the standbys is read."""


NEEDS: dict[Phase, int] = {Phase.WAITING: 1_000, Phase.RUNNING: 10_000}
"""Milliseconds that a phase must have lasted before a standby is made; absent: none is made."""


class Place(Enum):
    """What there is for one local rank."""

    EMPTY = "empty"
    MAKING = "making"
    READY = "ready"


class Seat(Struct, frozen=True):
    """The standby of one local rank."""

    place: Place = Place.EMPTY
    failures: int = 0
    """In a row."""


class State(Struct, frozen=True):
    """Everything that the decisions need. Times are milliseconds of a monotonic clock."""

    seats: tuple[Seat, ...]
    """By local rank."""
    limit_bytes: int
    """Memory that all standbys may use together."""
    most: int
    """Standbys that memory allows: of the first local ranks."""
    phase: Phase = Phase.WAITING
    calm_since_ms: int = 0
    swapped: int | None = None
    """Pages that the machine had swapped out when the calm began; None: not known yet."""
    is_looking: bool = False
    """A look at the swapped pages was asked for."""
    can_import: bool = True
    """There is something to import: with `auto`, once a round has run here."""
    weigh_ms: int | None = None
    """When to read their memory next; None: there are none."""
    is_new: bool = False
    """Some were made since the last log line about them."""


class Phased(Struct, frozen=True):
    """The node does something else now."""

    phase: Phase


class Swapped(Struct, frozen=True):
    """The machine has swapped out so many pages since it booted."""

    pages: int


class Made(Struct, frozen=True):
    """The standby of a local rank is ready."""

    local_rank: int


class Failed(Struct, frozen=True):
    """The standby of a local rank could not be made."""

    local_rank: int


class Lost(Struct, frozen=True):
    """A standby that was ready has ended, or was given up."""

    local_rank: int


class Weighed(Struct, frozen=True):
    """How much memory the standbys that are ready use, as (local rank, bytes) in rank order."""

    sizes: tuple[tuple[int, int], ...]


class Importable(Struct, frozen=True):
    """It is known what to import."""


class Refused(Struct, frozen=True):
    """No standby can work here."""


class TimePassed(Struct, frozen=True):
    """Something may be due."""


Input = Phased | Swapped | Made | Failed | Lost | Weighed | Importable | Refused | TimePassed


class Look(Struct, frozen=True):
    """Read how many pages the machine has swapped out; `Swapped` answers."""


class Make(Struct, frozen=True):
    """Make the standby of a local rank; `Made` or `Failed` answers."""

    local_rank: int


class Weigh(Struct, frozen=True):
    """Read the memory of the standbys; `Weighed` answers."""


class End(Struct, frozen=True):
    """End a standby; nothing answers."""

    local_rank: int


class LogReady(Struct, frozen=True):
    """All that can be made are ready."""

    workers: int
    bytes: int


class LogLimited(Struct, frozen=True):
    """Memory does not suffice for all of them."""

    bytes: int
    kept: int


class LogGivenUp(Struct, frozen=True):
    """A standby is not tried again."""

    local_rank: int


Effect = Look | Make | Weigh | End | LogReady | LogLimited | LogGivenUp


def begin(workers: int, limit_bytes: int, now_ms: int, *, can_import: bool) -> State:
    """Return the state of a node without standbys that waits for its first round."""
    return State(
        seats=(Seat(),) * workers,
        limit_bytes=limit_bytes,
        most=workers,
        calm_since_ms=now_ms,
        can_import=can_import,
    )


def step(state: State, input: Input, now_ms: int) -> tuple[State, tuple[Effect, ...]]:
    """Return the state after an input, and what to do."""
    match input:
        case Phased(phase):
            return _enter(state, phase, now_ms)
        case Swapped(pages):
            return _on_swapped(state, pages, now_ms)
        case Made(rank):
            return _on_made(state, rank, now_ms)
        case Failed(rank):
            return _on_failed(state, rank, now_ms)
        case Lost(rank):
            seat = replace(state.seats[rank], place=Place.EMPTY)
            state = replace(state, seats=_with(state, rank, seat), calm_since_ms=now_ms)
            return _go_on(state, now_ms)
        case Weighed(sizes):
            return _on_weighed(state, sizes, now_ms)
        case Importable():
            return _go_on(replace(state, can_import=True), now_ms)
        case Refused():
            return replace(state, most=0, weigh_ms=None), ()
        case TimePassed():
            return _go_on(state, now_ms)
    assert_never(input)


def next_deadline_ms(state: State) -> int | None:
    """Return when `TimePassed` is due; None: never, as things stand."""
    due = [] if state.weigh_ms is None else [state.weigh_ms]
    need_ms = NEEDS.get(state.phase)
    if need_ms is not None and not state.is_looking and _find_wanted(state) is not None:
        due.append(state.calm_since_ms + need_ms)
    return min(due, default=None)


def _enter(state: State, phase: Phase, now_ms: int) -> tuple[State, tuple[Effect, ...]]:
    if phase is state.phase:
        return state, ()
    seats = state.seats
    if phase is Phase.STARTING:
        seats = tuple(replace(seat, place=Place.EMPTY) for seat in seats)
        state = replace(state, weigh_ms=None, is_new=False)
    state = replace(
        state, seats=seats, phase=phase, calm_since_ms=now_ms, swapped=None, is_looking=False
    )
    if phase in NEEDS and _find_wanted(state) is not None:
        return replace(state, is_looking=True), (Look(),)
    return state, ()


def _on_swapped(state: State, pages: int, now_ms: int) -> tuple[State, tuple[Effect, ...]]:
    if not state.is_looking:
        return state, ()
    state = replace(state, is_looking=False)
    if state.swapped is None:
        return replace(state, swapped=pages), ()
    if pages > state.swapped:  # the machine is short of memory: wait for another calm time
        return replace(state, swapped=pages, calm_since_ms=now_ms), ()
    wanted = _find_wanted(state)
    if wanted is None or not _is_calm(state, now_ms):
        return state, ()
    seat = replace(state.seats[wanted], place=Place.MAKING)
    return replace(state, seats=_with(state, wanted, seat)), (Make(wanted),)


def _on_made(state: State, rank: int, now_ms: int) -> tuple[State, tuple[Effect, ...]]:
    if rank >= state.most:  # the limit was reached meanwhile
        return replace(state, seats=_with(state, rank, Seat())), (End(rank),)
    seats = _with(state, rank, Seat(Place.READY))
    return _go_on(replace(state, seats=seats, is_new=True, weigh_ms=now_ms), now_ms)


def _on_failed(state: State, rank: int, now_ms: int) -> tuple[State, tuple[Effect, ...]]:
    failures = state.seats[rank].failures + 1
    seats = _with(state, rank, Seat(Place.EMPTY, failures))
    state, effects = _go_on(replace(state, seats=seats, calm_since_ms=now_ms), now_ms)
    given_up = (LogGivenUp(rank),) if failures == FAILURES_MAX else ()
    return state, (*given_up, *effects)


def _on_weighed(
    state: State, sizes: tuple[tuple[int, int], ...], now_ms: int
) -> tuple[State, tuple[Effect, ...]]:
    ready = [(rank, size) for rank, size in sizes if state.seats[rank].place is Place.READY]
    total = sum(size for _, size in ready)
    effects: list[Effect] = []
    used = total
    while ready and used > state.limit_bytes:
        rank, size = ready.pop()
        used -= size
        effects.append(End(rank))
        seats = _with(state, rank, Seat())
        state = replace(state, seats=seats, most=min(state.most, rank))
    if effects:
        effects.insert(0, LogLimited(total, len(ready)))
    weigh_ms = now_ms + WEIGH_EVERY_MS if ready else None
    state = replace(state, weigh_ms=weigh_ms)
    if state.is_new and ready and _is_complete(state):
        effects.append(LogReady(len(ready), used))
        state = replace(state, is_new=False)
    return state, tuple(effects)


def _go_on(state: State, now_ms: int) -> tuple[State, tuple[Effect, ...]]:
    """Ask for what is due."""
    effects: list[Effect] = []
    if state.weigh_ms is not None and now_ms >= state.weigh_ms:
        state = replace(state, weigh_ms=now_ms + WEIGH_EVERY_MS)
        effects.append(Weigh())
    is_free = not state.is_looking and _find_wanted(state) is not None
    if is_free and state.phase in NEEDS and (state.swapped is None or _is_calm(state, now_ms)):
        state = replace(state, is_looking=True)
        effects.append(Look())
    return state, tuple(effects)


def _is_calm(state: State, now_ms: int) -> bool:
    need_ms = NEEDS.get(state.phase)
    return need_ms is not None and now_ms >= state.calm_since_ms + need_ms


def _find_wanted(state: State) -> int | None:
    """Return the local rank whose standby to make next; None: none, or one is being made."""
    if not state.can_import or any(seat.place is Place.MAKING for seat in state.seats):
        return None
    return next(_wanted(state), None)


def _is_complete(state: State) -> bool:
    is_making = any(seat.place is Place.MAKING for seat in state.seats)
    return not is_making and next(_wanted(state), None) is None


def _wanted(state: State) -> Iterator[int]:
    for rank, seat in enumerate(state.seats[: state.most]):
        if seat.place is Place.EMPTY and seat.failures < FAILURES_MAX:
            yield rank


def _with(state: State, rank: int, seat: Seat) -> tuple[Seat, ...]:
    return (*state.seats[:rank], seat, *state.seats[rank + 1 :])
