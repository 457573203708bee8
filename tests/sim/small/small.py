"""The state of a small world between two moves.

Everything is a value that never changes, so a state is copied by keeping it. The one exception is
the coordinator's `State`, which `copied` copies before a step. Time stands still until a deadline
may expire, so two orders of independent moves lead to the same state, and `key_of` says so.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.state import AgentState
from rallypoint.server.core.memory.replay import Memory
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.state.deadlines import Deadlines
from rallypoint.server.core.state.state import State
from sim.small.messages import Down, Up
from sim.world.wire import Hangup

JOB_ID = JobId("job0")
TIMING = Timing()
GRACE_MS = TIMING.reconnect_grace_ms


class Mishap(Enum):
    """What may go wrong. Each time costs one of the faults that a path is allowed."""

    SEVER = "sever"  # a stream breaks; what is in flight is lost; each side learns of it in time
    DROP = "drop"  # an agent gives its stream up; what it had sent arrives, perhaps after a Hello
    SKIP = "skip"  # an order is replaced by the next before it is sent
    SILENCE = "silence"  # a lease ends although the agent lives
    EARLY = "early"  # the next deadline expires although a message is on its way
    FAIL = "fail"  # a worker exits with 1
    KILL = "kill"  # a worker dies of SIGKILL
    NO_START = "no start"  # a worker cannot be started
    DRAIN = "drain"  # an operator drains a node
    TERMINATE = "terminate"  # SIGTERM to an agent
    CRASH_AGENT = "crash agent"  # SIGKILL: its workers die with it
    CRASH = "crash"  # the coordinator dies; the next one has no memory


@dataclass(frozen=True, slots=True)
class Bounds:
    """What to explore."""

    nodes: int = 2
    """1 or more; one job."""
    min_nodes: int = 2
    """The job's; `max_nodes` is `nodes`."""
    workers: tuple[int, ...] = (1,)
    """Per node; the last holds for all further nodes."""
    late: int = 0
    """The last so many nodes start their first agent at any time."""
    max_restarts: int = 1
    drain_ms: int = 0
    """How long workers continue after a SIGTERM to their agent."""
    faults: int = 1
    """Mishaps on one path."""
    kinds: frozenset[Mishap] = frozenset(Mishap)
    fence_ms: int = 0
    """The job's; then a SILENCE takes the time of a lease, since fences count time."""
    depth: int = 12
    """Moves on one path, from where it begins."""
    states_max: int = 1_000_000
    """Exploration ends at this many states, and the result says so."""
    is_running: bool = False
    """Begin when the first round runs, not before the first Hello."""
    exits: bool = True
    """Workers may end with 0 at any time; else they run on, and deeper paths stay few."""

    def spec(self) -> JobSpec:
        """Return the job's specification."""
        return JobSpec(
            min_nodes=self.min_nodes,
            max_nodes=self.nodes,
            max_restarts=self.max_restarts,
            join_timeout_ms=20_000,
            last_call_ms=1_000,
            settle_time_ms=1_000,
            grow_after_ms=1_000,
            shutdown_timeout_ms=1_000,
            restart_backoff_ms=100,
            fence_after_ms=self.fence_ms,
        )


class Worker(NamedTuple):
    """A worker process of a site's latest round."""

    pid: int
    session: SessionId
    order: RunOrder
    local_rank: int
    is_alive: bool = True
    signalled: bool = False
    """Its agent has signalled it."""
    exit_code: int | None = None
    signal: int | None = None

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.order.assignment.first_rank + self.local_rank


class Site(NamedTuple):
    """One host, with the agent that lives there, if one does, and its workers."""

    name: NodeName
    """Its name at the coordinator."""
    agent: AgentState | None
    incarnation: int = 0
    session: SessionId = SessionId("")
    connection: int = 0
    is_welcome: bool = False
    is_closed: bool = False
    """It does not connect any more."""
    retry_ms: int = 0
    """Until then it does not connect."""
    sent: int = 0
    """Highest report that went out on this connection."""
    run: int = 0
    coordinator_id: str = ""
    ports: int = 0
    """Ports reserved here so far."""
    pids: int = 0
    """Processes started here so far."""
    exit_due: int | None = None
    """The agent's exit code, once its last reports are sent."""
    exit_by_ms: int | None = None
    """When it exits even if they are not."""
    outcome: Outcome | None = None
    dismissed: int | None = None
    """The exit code with which a coordinator refused the agent for good."""
    was_terminated: bool = False
    heard: tuple[int, int] = (0, 0)
    """Life of the coordinator that has got a Hello last, and the connection of the Hello."""
    ended_ms: int | None = None
    """When the stream of that Hello ended on the coordinator's side; None while it is open."""
    was_missed: bool = False
    """That coordinator may have lost it since its latest round was sealed."""
    may_start: bool = False
    """An agent may be started here."""
    answers: tuple[agent_inputs.Input, ...] = ()
    """Answers of the helper that have not reached the agent yet, oldest first."""
    workers: tuple[Worker, ...] = ()
    fence_at_ms: int | None = None
    """When the helper kills everything, unless the agent moves that time."""
    sweep: int = 0
    """Token of the sweep that runs; 0 for none."""


class Stream(NamedTuple):
    """One connection. A `Hangup` is the last thing in either direction."""

    site: int
    session: SessionId
    connection: int
    life: int
    """Life of the coordinator that it leads to."""
    up: tuple[Up, ...] = ()
    down: tuple[Down | Hangup, ...] = ()
    agent_holds: bool = True
    server_holds: bool = False
    """Its Hello has arrived."""
    server_done: bool = False
    """The coordinator has closed it."""
    acknowledged: int = 0
    held_until_ms: int = 0
    """Until then nothing arrives."""


class Coordinator(NamedTuple):
    """One life of the coordinator, with the memory of its journal."""

    life: int
    state: State
    memory: Memory
    key: int
    began_ms: int
    """Its journal time counts from here."""


class Small(NamedTuple):
    """Everything that is true between two moves."""

    now_ms: int
    sites: tuple[Site, ...]
    streams: tuple[Stream, ...]
    """In order of site and connection."""
    coordinator: Coordinator | None
    lives: int
    faults: int
    """Mishaps that may still happen."""


def is_heard(small: Small, number: int) -> bool:
    """Return whether a site's heartbeats are answered as they are sent."""
    server, site = small.coordinator, small.sites[number]
    if server is None or site.agent is None or not site.is_welcome:
        return False
    return any(
        stream.site == number
        and stream.life == server.life
        and stream.agent_holds
        and stream.server_holds
        and not stream.server_done
        and not any(isinstance(one, Hangup) for one in (*stream.up[-1:], *stream.down[-1:]))
        for stream in small.streams
    )


def is_missed(site: Site, life: int, now_ms: int) -> bool:
    """Return whether a life of the coordinator may have lost a site's agent, as `Contacts` does."""
    is_broken = site.ended_ms is not None and now_ms - site.ended_ms >= GRACE_MS
    return site.heard[0] != life or site.was_missed or is_broken


NEVER_MS = 1 << 50
"""When a lease ends: heartbeats are no messages here, so it lasts until SILENCE ends it."""


def copied(state: State) -> State:
    """Return a copy that steps may be applied to."""
    deadlines = Deadlines()
    for key, at_ms in state.deadlines.items():
        deadlines.set(key, at_ms)
    return State(
        coordinator_id=state.coordinator_id,
        epoch=state.epoch,
        durable=state.durable,
        timing=state.timing,
        first_epoch=state.first_epoch,
        window_until_ms=state.window_until_ms,
        has_unknown_past=state.has_unknown_past,
        jobs=dict(state.jobs),
        nodes=dict(state.nodes),
        heard=state.heard,
        sessions={job_id: dict(sessions) for job_id, sessions in state.sessions.items()},
        index=dict(state.index),
        tallies=dict(state.tallies),
        barriers={job_id: dict(barriers) for job_id, barriers in state.barriers.items()},
        arrivals={key: dict(arrivals) for key, arrivals in state.arrivals.items()},
        counted={key: dict(counted) for key, counted in state.counted.items()},
        keys={job_id: space.copy() for job_id, space in state.keys.items()},
        holding=deepcopy(state.holding),
        gone=dict(state.gone),
        events=state.events.copy(),
        deadlines=deadlines,
        network=state.network,
        revisions=state.revisions.copy(),
        clocks=state.clocks.copy(),
    )


def state_key(state: State) -> int:
    """Return a fingerprint of all that a coordinator knows; the rest is derived from it."""
    return hash(
        (
            state.epoch,
            state.window_until_ms,
            state.network,
            tuple(state.jobs.values()),
            tuple(
                state.nodes[session] for sessions in state.sessions.values() for session in sessions
            ),
            frozenset(state.deadlines.items()),
        )
    )


def key_of(small: Small) -> int:
    """Return a fingerprint: the same for equal states, of 64 bits, so hardly ever for others."""
    server = small.coordinator
    known = None if server is None else (server.life, server.began_ms, server.key)
    return hash((small.now_ms, small.sites, small.streams, known, small.lives, small.faults))
