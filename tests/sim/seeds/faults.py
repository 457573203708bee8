"""The faults of one seed, their rates, and the features that its jobs use: swarm testing.

Every seed turns each kind of fault and each feature on or off by itself and draws its own rates, so
that rare combinations get separate seeds, and one seed shows a bug that a fault hides in another:
Groce, Zhang, Eide, Chen and Regehr, "Swarm Testing", ISSTA 2012. `Faults` are all the options of a
seed; `changed` sets some of them by name, as `run.py --option` does.

One seed in eight has no fault but crashes of the coordinator's process, or stalls of it: there
every running round has to be adopted or to continue. In half of the seeds the coordinator is
durable: its journal outlives it, and its disk has other faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from random import Random


class Fault(Enum):
    """What can be done to the world at an instant."""

    KILL_AGENT = "kill agent"  # SIGKILL: its processes die with it, its sockets are reset
    POWER_OFF = "power off"  # the node vanishes: no stream is reset
    FREEZE_AGENT = "freeze agent"  # SIGSTOP for a while; its workers run on
    PARTITION = "partition"  # nothing passes between a node and the coordinator for a while
    SEVER = "sever"  # one stream breaks; each side learns of it now, later or never
    TERMINATE = "terminate"  # SIGTERM to the agent, sometimes a second one
    DRAIN = "drain"  # an operator drains a node
    LOSE_HELPER = "lose helper"  # the helper process dies, and the workers with it
    START_AGENT = "start agent"  # another node joins
    CORDON = "cordon"  # an operator cordons a node
    UNCORDON = "uncordon"  # and uncordons it
    CRASH = "crash coordinator"  # kill -9 of its process: every stream is reset
    BLACKOUT = "blackout"  # the coordinator's host dies: no stream is reset
    STALL = "stall coordinator"  # SIGSTOP for a while


class DiskFault(Enum):
    """What can happen where a durable coordinator writes its journal. The next write meets it."""

    CRASH_BEFORE = "crash before an append"  # nothing is written, and nothing was shown
    CRASH_HALFWAY = "crash half-way"  # the last batch is torn: the store drops it
    CRASH_AFTER = "crash after an append"  # it is written, and nothing of it was shown
    FAIL = "disk fails"  # the append raises: the coordinator ends, and comes back later
    SLOW = "slow append"  # what the turn decided is shown only when it is written
    COMPACT = "compact"  # a snapshot replaces everything
    CRASH_COMPACTING = "crash in a compaction"  # all of it is replaced, or nothing
    SLOW_LOSS = "slow append of a loss"  # the next write that removes a node is slow


class Feature(Enum):
    """What the jobs of a seed may use. A job or node uses it in some of the cases."""

    GIVEN_NAMES = "given names"  # nodes are named, and two may have one name
    NODE_RANKS = "node ranks"
    UNEQUAL_NODES = "unequal nodes"  # other numbers of workers, other roles
    OTHER_FLAGS = "other flags"  # a node is started with another specification or program
    OTHER_ADDRESS = "other address"  # a node's address is a loopback, and its peers' are not
    LAUNCH_ID = "launch id"
    NO_GROWTH = "no growth"
    LATE_NODES = "late nodes"
    DOOMED = "doomed"  # every round fails early
    DRAIN_TIME = "drain time"  # a SIGTERM to an agent leaves its workers time
    EXIT_CODES = "exit codes"  # a code that ends the run
    QUARANTINE = "quarantine"  # nodes that fail repeatedly are quarantined
    FENCE = "fence"  # an agent without an answer kills its workers
    OWN_LEASE = "own lease"  # heartbeat interval and lease that the job chooses
    WORK_ENDS = "work ends"  # workers end by themselves, before faults stop


@dataclass(frozen=True, slots=True)
class Faults:
    """The options of one seed. Probabilities are percentages; 0 is off."""

    kinds: tuple[Fault, ...]
    """What may be injected; all equally likely."""
    every_ms: int
    """Mean time between two injected faults."""
    until_ms: int
    """Virtual time at which faults stop."""
    delay_ms_max: int
    """Longest usual delay of a message."""
    slow_percent: int
    """Messages that take much longer; later ones on the stream wait for them."""
    slow_ms_max: int
    repeat_percent: int
    """Reconnects after which old messages of the former connection arrive again."""
    writer_ms_max: int
    """How long the coordinator's outbox may collect before it is sent."""
    worker_fails_percent: int
    cannot_start_percent: int
    ignores_term_percent: int
    graceful_percent: int
    """Workers that exit with 0 on SIGTERM."""
    collateral_percent: int
    """Workers that fail when a peer of their round dies; the others hang."""
    victim_percent: int
    """Of these, the workers that blame their connection."""
    blocked_percent: int
    """Workers that outlive SIGKILL for a while."""
    return_percent: int
    """Agents that are started again after their end, with a new incarnation."""
    clock_back_percent: int
    """Coordinators that start with a clock behind their predecessor's."""
    record_percent: int = 0
    """Failing workers that leave an error record, or another fact about their end."""
    survives_percent: int = field(default=0, repr=False)
    """Workers that end with 0 after they have recorded an error. Not shown: others are drawn from
    what is."""
    features: tuple[Feature, ...] = ()
    """What jobs and nodes may use."""
    jobs_max: int = 3
    nodes_max: int = 6
    """Per job; 2 or more."""
    workers_max: int = 3
    """Per node."""
    meetings: int = -1
    """1: workers meet at barriers; 0: they do not; -1: each seed draws it separately."""
    keys: int = -1
    """1: workers use the key-value store; 0 and -1 as for meetings."""
    operators: int = -1
    """1: operators change jobs and nodes; 0 and -1 as for meetings."""
    durable: int = -1
    """1: the coordinator's journal outlives it; 0 and -1 as for meetings."""
    disk: tuple[DiskFault, ...] = ()
    """What writes meet; all equally likely. Only a durable coordinator writes."""
    disk_every_ms: int = 5_000
    """Mean time between two of them."""
    hangs: int = field(default=-1, repr=False)
    """1: workers stand still at times; 0 and -1 as for meetings. Not shown, as above."""
    owners: int = field(default=0, repr=False)
    """1: several coordinators own shards in etcd. Not shown, because other options are drawn from
    what is."""


def draw_faults(rng: Random) -> Faults:
    """Return the options of one seed."""
    features = tuple(feature for feature in Feature if rng.random() < 0.5)
    if rng.random() < 0.125:
        return _with_disk(replace(_only_crashes(rng), features=features))

    def maybe(low: int, high: int) -> int:
        return rng.randint(low, high) if rng.random() < 0.5 else 0

    drawn = Faults(
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
        victim_percent=rng.choice((0, 50, 100)),
        blocked_percent=maybe(5, 40),
        return_percent=rng.choice((30, 70, 100)),
        clock_back_percent=maybe(20, 60),
        features=features,
    )
    # Drawn from the others, not from the seed's generator: everything else stays as it is.
    recorded = replace(drawn, record_percent=Random(repr(drawn)).choice((0, 40, 100)))
    survives_percent = Random(f"{drawn} survives").choice((0, 25))
    return replace(_with_disk(recorded), survives_percent=survives_percent)


def _with_disk(drawn: Faults) -> Faults:
    """Return the options with what the disk does, drawn from the others for the same reason."""
    rng = Random(f"{drawn} disk")
    disk = tuple(fault for fault in DiskFault if rng.random() < 0.5)
    return replace(drawn, disk=disk, disk_every_ms=rng.choice((1_000, 3_000, 9_000)))


def changed(faults: Faults, options: Mapping[str, str]) -> Faults:
    """Return the same options with some of them set, by field: numbers, or names with commas.

    Kinds and features go by the names of their members, in any case: `kinds=crash,partition`.

    Raises:
        ValueError: no such knob, or no such value.
    """
    types = {"kinds": Fault, "features": Feature, "disk": DiskFault}
    known = {one.name for one in fields(Faults)}
    changes: dict[str, object] = {}
    for name, text in options.items():
        if name not in known:
            raise ValueError(f"no option {name}; there are {', '.join(sorted(known))}")
        if name in types:
            changes[name] = tuple(_member(types[name], one) for one in text.split(",") if one)
        else:
            changes[name] = int(text)
    return replace(faults, **changes)  # type: ignore[arg-type]  # replace checks names


def _member(kind: type[Enum], name: str) -> Enum:
    found = kind.__members__.get(name.strip().upper().replace(" ", "_").replace("-", "_"))
    if found is None:
        names = ", ".join(member.lower() for member in kind.__members__)
        raise ValueError(f"no {kind.__name__.lower()} {name}; there are {names}")
    return found


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
        victim_percent=0,
        blocked_percent=0,
        return_percent=100,
        clock_back_percent=0,
    )


def calm(faults: Faults) -> Faults:
    """Return the same options with every fault turned off.

    What workers do on TERM and when a peer dies stays: these are consequences, not faults.
    """
    return replace(
        faults,
        kinds=(),
        slow_percent=0,
        slow_ms_max=0,
        repeat_percent=0,
        worker_fails_percent=0,
        cannot_start_percent=0,
        blocked_percent=0,
        return_percent=0,
        clock_back_percent=0,
        disk=(),
    )
