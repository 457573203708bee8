"""What goes wrong in one seed, and how often: a swarm.

Every seed turns each kind of fault on or off by itself and draws its own rates, so that rare
combinations get seeds of their own. One seed in eight has no fault but crashes of the coordinator's
process, or stalls of it: there every running round has to be adopted, or to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random


class Fault(Enum):
    """What can be done to the world at an instant."""

    KILL_AGENT = "kill agent"  # SIGKILL: its processes die with it, its sockets are reset
    POWER_OFF = "power off"  # the node falls silent: no reset reaches anybody
    FREEZE_AGENT = "freeze agent"  # SIGSTOP for a while; its workers run on
    PARTITION = "partition"  # nothing passes between a node and the coordinator for a while
    SEVER = "sever"  # one stream breaks; each side learns of it now, later or never
    TERMINATE = "terminate"  # SIGTERM to the agent, sometimes a second one
    DRAIN = "drain"  # an operator asks a node to leave
    LOSE_HELPER = "lose helper"  # the helper process dies, and the workers with it
    START_AGENT = "start agent"  # another node comes
    CORDON = "cordon"  # an operator sets a node aside
    UNCORDON = "uncordon"  # and takes that back
    CRASH = "crash coordinator"  # kill -9 of its process: every stream is reset
    BLACKOUT = "blackout"  # the coordinator's host dies: no stream is reset
    STALL = "stall coordinator"  # SIGSTOP for a while


@dataclass(frozen=True, slots=True)
class Faults:
    """The knobs of one seed. Probabilities are per cent of the occasions; 0 is off."""

    kinds: tuple[Fault, ...]
    """What may be injected; all equally likely."""
    every_ms: int
    """Mean time between two injected faults."""
    until_ms: int
    """Virtual time at which faults stop."""
    delay_ms_max: int
    """Longest usual delay of a message."""
    slow_percent: int
    """Messages that take much longer; what follows them on the stream waits."""
    slow_ms_max: int
    repeat_percent: int
    """Reconnects after which old messages of the former connection arrive again."""
    writer_ms_max: int
    """How long the coordinator's outbox may collect before it is sent."""
    worker_fails_percent: int
    cannot_start_percent: int
    ignores_term_percent: int
    graceful_percent: int
    """Workers that end with 0 when they get TERM."""
    collateral_percent: int
    """Workers that fail when a peer of their round dies; the others hang."""
    blocked_percent: int
    """Workers that outlive SIGKILL for a while."""
    return_percent: int
    """Agents that are started again after they are gone, with a new incarnation."""
    clock_back_percent: int
    """Coordinators that start with a clock behind their predecessor's."""

    @property
    def only_crashes(self) -> bool:
        """True when nothing but the coordinator's process ever fails."""
        return self.kinds == (Fault.CRASH,)


def draw_faults(rng: Random) -> Faults:
    """Return the knobs of one seed."""
    if rng.random() < 0.125:
        return _only_crashes(rng)

    def maybe(low: int, high: int) -> int:
        return rng.randint(low, high) if rng.random() < 0.5 else 0

    return Faults(
        kinds=tuple(kind for kind in Fault if rng.random() < 0.5),
        every_ms=rng.choice((400, 1_200, 3_500, 9_000)),
        until_ms=rng.randint(8_000, 60_000),
        delay_ms_max=rng.choice((2, 10, 60)),
        slow_percent=maybe(1, 4),
        slow_ms_max=rng.choice((300, 2_000, 7_000)),
        repeat_percent=maybe(20, 80),
        writer_ms_max=rng.choice((1, 20, 200)),
        worker_fails_percent=maybe(2, 20),
        cannot_start_percent=maybe(1, 6),
        ignores_term_percent=maybe(10, 60),
        graceful_percent=maybe(10, 60),
        collateral_percent=rng.choice((0, 40, 100)),
        blocked_percent=maybe(5, 40),
        return_percent=rng.choice((30, 70, 100)),
        clock_back_percent=maybe(20, 60),
    )


def _only_crashes(rng: Random) -> Faults:
    kind, every_ms = rng.choice(((Fault.CRASH, 4_000), (Fault.CRASH, 9_000), (Fault.STALL, 15_000)))
    return Faults(
        kinds=(kind,),
        every_ms=every_ms,
        until_ms=rng.randint(15_000, 40_000),
        delay_ms_max=rng.choice((2, 10, 60)),
        slow_percent=0,
        slow_ms_max=0,
        repeat_percent=0,
        writer_ms_max=rng.choice((1, 20)),
        worker_fails_percent=0,
        cannot_start_percent=0,
        ignores_term_percent=0,
        graceful_percent=0,
        collateral_percent=0,
        blocked_percent=0,
        return_percent=100,
        clock_back_percent=0,
    )


def calm(faults: Faults) -> Faults:
    """Return the same knobs with everything that could still go wrong turned off.

    What workers do on TERM and when a peer dies stays: these are consequences, not faults.
    """
    return Faults(
        kinds=(),
        every_ms=faults.every_ms,
        until_ms=faults.until_ms,
        delay_ms_max=faults.delay_ms_max,
        slow_percent=0,
        slow_ms_max=0,
        repeat_percent=0,
        writer_ms_max=faults.writer_ms_max,
        worker_fails_percent=0,
        cannot_start_percent=0,
        ignores_term_percent=faults.ignores_term_percent,
        graceful_percent=faults.graceful_percent,
        collateral_percent=faults.collateral_percent,
        blocked_percent=0,
        return_percent=0,
        clock_back_percent=0,
    )
