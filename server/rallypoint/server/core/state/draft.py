"""What the coordinator knows, and how one step changes it.

`State` is read by everybody and changed only by `apply`. A step works on a `Draft`: it reads
through to the state, keeps its own changes beside it, and ends as a `Delta`, so a step that is
refused or broken has changed nothing, and one that succeeds costs what it touched.

The tally of a job counts its nodes by what they can do. `Draft.put_node` keeps it from the
difference that the node makes, so no decision has to look at every node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rallypoint.server.core.deadlines import DeadlineKey, DeadlineKind, Deadlines
from rallypoint.server.core.effects import Effect, JobChanged, Record
from rallypoint.server.core.model import Activity, Bar, Job, JobId, NodeName, SessionId
from rallypoint.server.core.node import Node
from rallypoint.server.core.path import Path
from rallypoint.server.core.spec import JobSpec
from rallypoint.server.core.timing import NOTHING_ASKED
from rallypoint.server.core.timing import Timing as Timing  # a part of the state


class Tally(NamedTuple):
    """How many nodes of a job are what. Every field is a sum over the job's nodes."""

    nodes: int = 0
    away: int = 0
    """Stream broken, within the grace."""
    eligible: int = 0
    """Attached, READY and not set aside for their health."""
    reserve: int = 0
    """Quarantined, else eligible."""
    members: int = 0
    pending: int = 0
    """Members that a stop has to wait for."""
    unstarted: int = 0
    """Members that were assigned and have not started."""
    succeeded: int = 0
    """Members that have succeeded."""
    newcomers: int = 0
    """Eligible nodes that are no members."""
    draining: int = 0
    """Members that drain."""
    staying: int = 0
    """Members that another round may have: they neither drain nor are cordoned."""

    def placeable(self, min_nodes: int) -> int:
        """Return how many nodes a round can have: the reserve only as far as `min_nodes` asks."""
        return max(self.eligible, min(self.eligible + self.reserve, min_nodes))

    def plus(self, other: Tally, sign: int) -> Tally:
        """Return this tally with another one added (sign 1) or taken away (sign -1)."""
        return Tally(
            self.nodes + sign * other.nodes,
            self.away + sign * other.away,
            self.eligible + sign * other.eligible,
            self.reserve + sign * other.reserve,
            self.members + sign * other.members,
            self.pending + sign * other.pending,
            self.unstarted + sign * other.unstarted,
            self.succeeded + sign * other.succeeded,
            self.newcomers + sign * other.newcomers,
            self.draining + sign * other.draining,
            self.staying + sign * other.staying,
        )


_Standing = tuple[bool, Activity, bool, bool, Bar, bool]
"""All that a node's tally depends on: attached, activity, member, set aside, bar, draining."""
_tallies: dict[_Standing, Tally] = {}
_differences: dict[tuple[_Standing, _Standing], Tally] = {}
"""Worked out once for each of the few standings and pairs of standings that there are."""


def _standing(node: Node) -> _Standing:
    return (
        node.attached,
        node.activity,
        node.member,
        node.set_aside,
        node.bar,
        node.drain is not None,
    )


def tally_of(node: Node) -> Tally:
    """Return what one node adds to its job's tally."""
    standing = _standing(node)
    found = _tallies.get(standing)
    if found is None:
        found = _tallies[standing] = Tally(
            nodes=1,
            away=not node.attached,
            eligible=node.is_eligible,
            reserve=node.is_reserve,
            members=node.member,
            pending=node.is_pending,
            unstarted=node.member and node.activity is Activity.ASSIGNED,
            succeeded=node.member and node.activity is Activity.SUCCEEDED,
            newcomers=node.is_eligible and not node.member,
            draining=node.member and node.drain is not None,
            staying=node.member and node.drain is None and node.bar is not Bar.CORDONED,
        )
    return found


def _difference(old: Node, new: Node) -> Tally:
    """Return what the tally gains when `old` becomes `new`."""
    pair = (_standing(old), _standing(new))
    found = _differences.get(pair)
    if found is None:
        found = _differences[pair] = tally_of(new).plus(tally_of(old), -1)
    return found


IndexKey = tuple[JobId, str | int]
"""A node name, or an explicit node rank, within a job."""


@dataclass(slots=True)
class State:
    """Everything that the coordinator knows. Only `apply` changes it."""

    coordinator_id: str
    epoch: int
    durable: bool = False
    timing: Timing = field(default_factory=Timing)
    first_epoch: int = 0
    """Epoch with which this life of the coordinator began."""
    window_until_ms: int = 0
    """Nothing is sealed before."""
    is_blind: bool = False
    """Workers may run of which this life of the coordinator has not heard; it began at 0 ms."""
    jobs: dict[JobId, Job] = field(default_factory=dict)
    nodes: dict[SessionId, Node] = field(default_factory=dict)
    sessions: dict[JobId, dict[SessionId, None]] = field(default_factory=dict)
    """Sessions of each job in order of arrival."""
    index: dict[IndexKey, SessionId] = field(default_factory=dict)
    tallies: dict[JobId, Tally] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    path: Path = field(default_factory=Path)

    def heartbeat_ms(self, spec: JobSpec) -> int:
        """Return the interval between heartbeats of agents with this specification."""
        return self.timing.compute_heartbeat_ms(spec, len(self.nodes))

    def lease_ms(self, spec: JobSpec) -> int:
        """Return how long a silent session with this specification counts as alive."""
        return self.timing.compute_lease_ms(spec, len(self.nodes))

    def own_lease_ms(self) -> int:
        """Return the coordinator's own lease: what is about no job in particular lasts as long."""
        return self.lease_ms(NOTHING_ASKED)

    def shortest_lease_ms(self) -> int:
        """Return the shortest lease of any session; the coordinator's own while there is none."""
        leases = (
            self.lease_ms(self.jobs[job_id].spec)
            for job_id, sessions in self.sessions.items()
            if sessions
        )
        return min(leases, default=self.own_lease_ms())

    def return_ms(self, spec: JobSpec) -> int:
        """Return how long a stream that broke on a suspected path may take to come back.

        A lease, but not less than the coordinator's own: a job's may be shorter than the pauses
        between an agent's attempts to connect.
        """
        return max(self.lease_ms(spec), self.own_lease_ms())

    def next_deadline_ms(self) -> int | None:
        """Return when something is due although nothing happens, or None."""
        first = self.deadlines.first()
        return None if first is None else first[0]


class Delta(NamedTuple):
    """The changes of one step; None stands for a removed entry."""

    epoch: int | None
    jobs: dict[JobId, Job | None]
    nodes: dict[SessionId, Node | None]
    entries: dict[IndexKey, SessionId | None]
    tallies: dict[JobId, Tally]
    deadlines: dict[DeadlineKey, int | None]
    window_closed: bool
    path: Path | None = None

    @property
    def is_empty(self) -> bool:
        """True when the step changed nothing."""
        return self == Delta(None, {}, {}, {}, {}, {}, window_closed=False)


class Draft:
    """One step's view of the state: what was, plus its own changes."""

    def __init__(self, state: State, now_ms: int) -> None:
        """Begin a step over `state` at `now_ms`."""
        self.state = state
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.records: list[Record] = []
        self.touched: dict[SessionId, None] = {}
        """Nodes whose desired state may have changed."""
        self.resend: set[SessionId] = set()
        """Nodes that have to be told their desired state although it has not changed."""
        self.leaving: list[tuple[SessionId, str]] = []
        """Nodes that said goodbye in this step, and their words."""
        self._epoch: int | None = None
        self._jobs: dict[JobId, Job | None] = {}
        self._nodes: dict[SessionId, Node | None] = {}
        self._added: dict[JobId, dict[SessionId, None]] = {}
        self._index: dict[IndexKey, SessionId | None] = {}
        self._tallies: dict[JobId, Tally] = {}
        self._deadlines: dict[DeadlineKey, int | None] = {}
        self._window_closed = False
        self._path: Path | None = None

    @property
    def epoch(self) -> int:
        """The coordinator's epoch."""
        return self.state.epoch if self._epoch is None else self._epoch

    def raise_epoch(self, epoch: int) -> None:
        """Speak with a higher epoch from here on."""
        self._epoch = epoch

    @property
    def window_is_open(self) -> bool:
        """True while the coordinator only listens for rounds to adopt."""
        return self.state.window_until_ms > 0 and not self._window_closed

    @property
    def path(self) -> Path:
        """What is known of the way between the coordinator and its agents."""
        return self.state.path if self._path is None else self._path

    def put_path(self, path: Path) -> None:
        """Replace what is known of the path."""
        self._path = path

    def close_window(self) -> None:
        """Seal rounds from here on."""
        self._window_closed = True

    def job(self, job_id: JobId) -> Job | None:
        """Return a job, or None."""
        if job_id in self._jobs:
            return self._jobs[job_id]
        return self.state.jobs.get(job_id)

    def the_job(self, job_id: JobId) -> Job:
        """Return a job that must exist."""
        job = self.job(job_id)
        assert job is not None, job_id
        return job

    def put_job(self, job: Job) -> None:
        """Add or replace a job."""
        self._jobs[job.job_id] = job

    def remove_job(self, job_id: JobId) -> None:
        """Forget a job without nodes."""
        self._jobs[job_id] = None
        self._tallies[job_id] = Tally()
        for kind in (
            DeadlineKind.FORGET,
            DeadlineKind.ABANDON,
            DeadlineKind.FORMING,
            DeadlineKind.HEALTH,
        ):
            self.set_deadline(kind, job_id, None)

    def changed_jobs(self) -> list[JobId]:
        """Return the jobs that were changed, or whose nodes were, in order of first change."""
        found = dict.fromkeys(self._jobs)
        for session, node in self._nodes.items():
            known = node or self.state.nodes.get(session)
            if known is not None:
                found[known.job_id] = None
        return list(found)

    def changed(self, job_id: JobId, reason: str, **facts: str | int) -> None:
        """Let readers of the job know; `reason` is a past-tense event name, `facts` its log."""
        self.effects.append(JobChanged(job_id, reason, tuple(facts.items())))

    def node(self, session: SessionId) -> Node | None:
        """Return a node, or None."""
        if session in self._nodes:
            return self._nodes[session]
        return self.state.nodes.get(session)

    def the_node(self, session: SessionId) -> Node:
        """Return a node that must exist, as it is by now."""
        node = self.node(session)
        assert node is not None, session
        return node

    def tally(self, job_id: JobId) -> Tally:
        """Return the counts of a job's nodes."""
        tally = self._tallies.get(job_id)
        return tally if tally is not None else self.state.tallies.get(job_id, _NOBODY)

    def nodes_of(self, job_id: JobId) -> Iterator[Node]:
        """Return the job's nodes in order of arrival."""
        for session in self.state.sessions.get(job_id, ()):
            node = self.node(session)
            if node is not None:
                yield node
        for session in self._added.get(job_id, ()):
            node = self.node(session)
            if node is not None:
                yield node

    def touch_all(self, job_id: JobId) -> None:
        """Look again at what every node of the job has to make true."""
        for node in self.nodes_of(job_id):
            self.touched[node.session] = None

    def put_node(self, node: Node) -> None:
        """Add or replace a node and keep the tally."""
        session, job_id = node.session, node.job_id
        old = self.node(session)
        tally = self.tally(job_id)
        if old is None:
            self._tallies[job_id] = tally.plus(tally_of(node), 1)
            if session not in self.state.nodes:
                self._added.setdefault(job_id, {})[session] = None
            self._index[(job_id, node.name)] = session
            if node.identity.node_rank is not None:
                self._index[(job_id, node.identity.node_rank)] = session
        elif not (
            old.activity is node.activity
            and old.attached == node.attached
            and old.member == node.member
            and old.set_aside == node.set_aside
            and old.drain == node.drain
            and old.bar is node.bar
        ):
            self._tallies[job_id] = tally.plus(_difference(old, node), 1)
        self._nodes[session] = node
        self.touched[session] = None

    def remove_node(self, node: Node) -> None:
        """Forget a node and keep the tally."""
        current = self.node(node.session)
        assert current is not None, node.session
        self._tallies[node.job_id] = self.tally(node.job_id).plus(tally_of(current), -1)
        self._nodes[node.session] = None
        self._index[(node.job_id, node.name)] = None
        if node.identity.node_rank is not None:
            self._index[(node.job_id, node.identity.node_rank)] = None
        self.touched.pop(node.session, None)
        self.set_deadline(DeadlineKind.LEASE, node.session, None)
        self.set_deadline(DeadlineKind.GRACE, node.session, None)

    def holder(self, job_id: JobId, key: NodeName | int) -> Node | None:
        """Return the node that has this name or explicit rank in the job, or None."""
        index_key = (job_id, key)
        session = (
            self._index[index_key] if index_key in self._index else self.state.index.get(index_key)
        )
        return None if session is None else self.node(session)

    def deadline(self, kind: DeadlineKind, subject: str) -> int | None:
        """Return when something is due, or None."""
        key = (kind, subject)
        if key in self._deadlines:
            return self._deadlines[key]
        return self.state.deadlines.get(key)

    def set_deadline(self, kind: DeadlineKind, subject: str, at_ms: int | None) -> None:
        """Set, move or (None) drop a deadline."""
        self._deadlines[(kind, subject)] = at_ms

    def delta(self) -> Delta:
        """Return the changes made so far."""
        return Delta(
            epoch=self._epoch,
            jobs=self._jobs,
            nodes=self._nodes,
            entries=self._index,
            tallies=self._tallies,
            deadlines=self._deadlines,
            window_closed=self._window_closed,
            path=self._path,
        )


_NOBODY = Tally()


def apply(state: State, delta: Delta) -> None:
    """Carry the changes of one step into the state."""
    if delta.epoch is not None:
        state.epoch = delta.epoch
    if delta.window_closed:
        state.window_until_ms = 0
    if delta.path is not None:
        state.path = delta.path
    for session, node in delta.nodes.items():
        _apply_node(state, session, node)
    for index_key, holder in delta.entries.items():
        if holder is None:
            state.index.pop(index_key, None)
        else:
            state.index[index_key] = holder
    state.tallies.update(delta.tallies)
    for key, at_ms in delta.deadlines.items():
        state.deadlines.set(key, at_ms)
    for job_id, job in delta.jobs.items():
        _apply_job(state, job_id, job)


def _apply_job(state: State, job_id: JobId, job: Job | None) -> None:
    if job is not None:
        state.jobs[job_id] = job
        return
    for entries in (state.jobs, state.sessions, state.tallies):
        entries.pop(job_id, None)


def _apply_node(state: State, session: SessionId, node: Node | None) -> None:
    if node is not None:
        if session not in state.nodes:
            state.sessions.setdefault(node.job_id, {})[session] = None
        state.nodes[session] = node
        return
    gone = state.nodes.pop(session, None)
    if gone is not None:
        state.sessions[gone.job_id].pop(session, None)
