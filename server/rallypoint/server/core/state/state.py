"""The coordinator's state, and how the changes of a step are applied to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct, field

from rallypoint.server.core.messages.records import EventsLogged, KeysDropped, KeysWritten
from rallypoint.server.core.model.barrier import (
    Arrival,
    Barrier,
    BarrierKey,
    Participant,
    count_arrivals,
)
from rallypoint.server.core.model.events import EventLog
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import FORGOTTEN_MAX, Gone, Job
from rallypoint.server.core.model.keyspace import Keyspace, new_keyspace
from rallypoint.server.core.model.network import NetworkSuspicion
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.model.spec import NOTHING_ASKED, JobSpec, Timing
from rallypoint.server.core.state.clocks import Clocks
from rallypoint.server.core.state.deadlines import DeadlineKey, DeadlineKind, Deadlines
from rallypoint.server.core.state.holding import Holding, Together
from rallypoint.server.core.state.revisions import PER_EPOCH, Revisions
from rallypoint.server.core.state.tally import Tally

WAITING_MS = 1_000
"""How much of a wait a crash of the coordinator may repeat. So one that is killed every few seconds
still comes to the end of each."""
RUNNING_MS = 30_000
"""How much younger a crash may make a round. Ages decide in minutes. Of the steps that workers
report in so long, one is journalled."""
KeyChange = KeysWritten | KeysDropped
"""A change of keys is applied to the state as it is recorded."""

IndexKey = tuple[JobId, str | int]
"""A node name, or an explicit node rank, within a job."""
_NO_NODES = Tally()


class State(Struct):
    """Everything that the coordinator knows. Only `apply` changes it, but for `clocks`."""

    coordinator_id: str
    epoch: int
    durable: bool = False
    timing: Timing = field(default_factory=Timing)
    first_epoch: int = 0
    """Epoch of this coordinator process at its start."""
    since_epoch: int = 0
    """Epoch since which nothing that happened is unknown: a coordinator that remembered nothing
    began with it, or another one was at work before it."""
    window_until_ms: int = 0
    """No round is sealed before this time."""
    listens_until_ms: int = 0
    """When the first window of this life closes, or did; 0: it has none."""
    has_unknown_past: bool = False
    """Workers of an earlier coordinator process may run. This process began at 0 ms."""
    jobs: dict[JobId, Job] = field(default_factory=dict)
    nodes: dict[SessionId, Node] = field(default_factory=dict)
    heard: int = 0
    """Nodes from which anything arrived after their Welcome. Only they send heartbeats."""
    sessions: dict[JobId, dict[SessionId, None]] = field(default_factory=dict)
    """Sessions of each job in order of arrival."""
    index: dict[IndexKey, SessionId] = field(default_factory=dict)
    tallies: dict[JobId, Tally] = field(default_factory=dict)
    barriers: dict[JobId, dict[BarrierKey, Barrier]] = field(default_factory=dict)
    """Barriers of each job that are open or remembered."""
    arrivals: dict[BarrierKey, dict[Participant, Arrival]] = field(default_factory=dict)
    """Who has arrived at each open barrier."""
    counted: dict[BarrierKey, dict[Participant, tuple[str, int]]] = field(default_factory=dict)
    """The latest arrival of each participant at a generation that has ended: its request id, and
    the generation. So an arrival that is sent again never counts twice. See `count_arrivals`."""
    gone: dict[JobId, Gone] = field(default_factory=dict)
    """What remains of jobs that were forgotten, the latest last; at most FORGOTTEN_MAX."""
    keys: dict[JobId, Keyspace] = field(default_factory=dict)
    """Keys of each job whose run has or had any."""
    holding: Holding = field(default_factory=Holding)
    """What the jobs hold of what there may be only so much of in a process."""
    together: Together = field(default_factory=Together)
    """What all states of the process hold, this one among them."""
    events: EventLog = field(default_factory=EventLog)
    """What has happened to all jobs."""
    clocks: Clocks = field(default_factory=Clocks)
    """For times of day. What runs the core measures them: nothing is decided by them."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    network: NetworkSuspicion = field(default_factory=NetworkSuspicion)
    revisions: Revisions = field(default_factory=Revisions)
    """What readers have not seen. No decision about a round depends on it."""

    @property
    def revision(self) -> int:
        """The latest revision of any job: what readers get from now on has a higher one."""
        return max(self.revisions.latest, self.epoch * PER_EPOCH)

    @property
    def compacted_revision(self) -> int:
        """Revision after which every deletion is remembered."""
        return max(self.revisions.compacted, self.since_epoch * PER_EPOCH)

    def revision_of(self, job_id: JobId) -> int:
        """Return the revision of a job; for one that does not exist, that of its deletion.

        A job whose deletion is not remembered has not existed since the compacted revision.
        """
        known = self.revisions.jobs.get(job_id) or self.revisions.deletions.get(job_id)
        return self.compacted_revision if known is None else known

    def revise(self, job_id: JobId) -> None:
        """Give a job, which was changed or forgotten, the next revision."""
        self.revisions.change(job_id, self.revision + 1, exists=job_id in self.jobs)

    def __post_init__(self) -> None:
        """Begin with the epoch, unless the journal was loaded."""
        self.since_epoch = self.since_epoch or self.epoch
        if not any(part is self.holding for part in self.together.parts):
            self.together.parts.append(self.holding)
        if not self.events.last:
            self.events.begin(self.epoch)

    def tally(self, job_id: JobId) -> Tally:
        """Return the counts of a job's nodes."""
        return self.tallies.get(job_id, _NO_NODES)

    def nodes_of(self, job_id: JobId) -> Iterator[Node]:
        """Return a job's nodes in order of arrival."""
        return (self.nodes[session] for session in self.sessions.get(job_id, ()))

    def heartbeat_ms(self, spec: JobSpec) -> int:
        """Return the interval between heartbeats of agents with this specification.

        Its job needs `min_nodes` sessions. They count before they have come: else each of
        thousands would send several heartbeats while the first round forms, at the short interval
        that its Welcome gave it, and get one answer each with a longer one.
        """
        return self.timing.compute_heartbeat_ms(spec, max(self.heard, spec.min_nodes))

    def lease_ms(self, spec: JobSpec) -> int:
        """Return how long a silent session with this specification counts as alive."""
        return self.timing.compute_lease_ms(spec, max(self.heard, spec.min_nodes))

    def silent_ms(self, node: Node, now_ms: int) -> int:
        """Return for how long nothing has come from a node."""
        if node.broke_ms is not None:
            return now_ms - node.broke_ms
        ends_ms = self.deadlines.get((DeadlineKind.LEASE, node.session))
        lease_ms = self.lease_ms(node.identity.spec)
        return 0 if ends_ms is None else max(0, now_ms - (ends_ms - lease_ms))

    def own_lease_ms(self) -> int:
        """Return the coordinator's own lease, for waits that belong to no job."""
        return self.lease_ms(NOTHING_ASKED)

    def shortest_lease_ms(self) -> int:
        """Return the shortest lease of any session; the coordinator's own without sessions."""
        leases = (
            self.lease_ms(self.jobs[job_id].spec)
            for job_id, sessions in self.sessions.items()
            if sessions
        )
        return min(leases, default=self.own_lease_ms())

    def return_ms(self, spec: JobSpec) -> int:
        """Return how long an agent may take to reconnect while the network is suspected.

        The job's lease, but at least the coordinator's own: a job's may be shorter than the pauses
        between an agent's attempts to connect.
        """
        return max(self.lease_ms(spec), self.own_lease_ms())

    def is_current(self, session: SessionId, connection: int) -> bool:
        """Return whether this is the connection of a session that is known now.

        A node that the present turn removes is not, before its loss is in the journal.
        """
        node = self.nodes.get(session)
        return node is not None and node.connection == connection

    def keep_time_ms(self) -> int | None:
        """Return how much time may pass before the journal has to keep it; None: any.

        Time that no batch has kept did not pass for a coordinator that starts again.
        """
        if self.deadlines.waits:
            return WAITING_MS
        return RUNNING_MS if self.nodes else None

    def next_deadline_ms(self) -> int | None:
        """Return when the next deadline expires, or None."""
        first = self.deadlines.first()
        return None if first is None else first[0]


class Delta(NamedTuple):
    """The changes of one step; a value of None removes the entry."""

    epoch: int | None
    jobs: dict[JobId, Job | None]
    nodes: dict[SessionId, Node | None]
    entries: dict[IndexKey, SessionId | None]
    tallies: dict[JobId, Tally]
    deadlines: dict[DeadlineKey, int | None]
    window_closed: bool
    barriers: dict[BarrierKey, Barrier | None]
    arrivals: dict[BarrierKey, dict[Participant, Arrival]]
    """Added ones."""
    keys: list[KeyChange]
    """In order."""
    events: EventsLogged | None
    network: NetworkSuspicion | None = None
    gone: dict[JobId, Gone] = {}  # noqa: RUF012  # no one changes it
    """Of removed jobs."""
    revised: tuple[JobId, ...] = ()
    """Jobs that readers see in a new form, or no more, in the order of their revisions."""


NO_CHANGES = Delta(
    epoch=None,
    jobs={},
    nodes={},
    entries={},
    tallies={},
    deadlines={},
    window_closed=False,
    barriers={},
    arrivals={},
    keys=[],
    events=None,
)
"""The changes of a refused input."""


def apply(state: State, delta: Delta) -> None:
    """Apply the changes of one step to the state."""
    if delta.epoch is not None:
        state.epoch = state.since_epoch = delta.epoch
        # Another coordinator has been at work: a reader may have its revisions.
        state.revisions.compacted = state.revision
        state.events.miss(delta.epoch)
    if delta.window_closed:
        state.window_until_ms = 0
    if delta.network is not None:
        state.network = delta.network
    for session, node in delta.nodes.items():
        _apply_node(state, session, node)
    _apply_barriers(state, delta)
    for change in delta.keys:
        _apply_keys(state, change)
    _apply_entries(state, delta.entries)
    state.tallies.update(delta.tallies)
    for key, at_ms in delta.deadlines.items():
        state.deadlines.set(key, at_ms)
    _apply_jobs(state, delta)
    if delta.events is not None:  # last: changes that were applied in part have no events
        state.events.take(delta.events.events)


def remember_gone(gone: dict[JobId, Gone], job_id: JobId, left: Gone) -> None:
    """Remember what remains of a job, as the latest one.

    It stays when the job exists again. So a full list says that others may have been dropped.
    """
    gone.pop(job_id, None)
    gone[job_id] = left
    if len(gone) > FORGOTTEN_MAX:
        del gone[next(iter(gone))]


def _apply_entries(state: State, entries: dict[IndexKey, SessionId | None]) -> None:
    for index_key, holder in entries.items():
        if holder is None:
            state.index.pop(index_key, None)
        else:
            state.index[index_key] = holder


def _apply_keys(state: State, change: KeyChange) -> None:
    before = state.keys.get(change.job_id)
    state.holding.keys -= 0 if before is None else before.weight
    apply_keys(state.keys, change)
    after = state.keys.get(change.job_id)
    state.holding.keys += 0 if after is None else after.weight


def apply_keys(keys: dict[JobId, Keyspace], change: KeyChange) -> None:
    """Apply a change of keys to the keyspaces of all jobs."""
    if isinstance(change, KeysWritten):
        space = keys.get(change.job_id)
        if space is None:
            space = keys[change.job_id] = new_keyspace(change.run, change.since_epoch)
        space.take(change.changes, change.round, change.request_id, change.answer)
    elif change.round:
        keys[change.job_id].drop_round(change.round)
    else:
        keys.pop(change.job_id, None)


def _apply_jobs(state: State, delta: Delta) -> None:
    for job_id, left in delta.gone.items():
        remember_gone(state.gone, job_id, left)
    for job_id, job in delta.jobs.items():
        _apply_job(state, job_id, job)
    state.holding.jobs = len(state.jobs)
    for job_id in delta.revised:
        state.revise(job_id)


def _apply_job(state: State, job_id: JobId, job: Job | None) -> None:
    if job is not None:
        state.jobs[job_id] = job
        return
    for entries in (state.jobs, state.sessions, state.tallies):
        entries.pop(job_id, None)


def _apply_barriers(state: State, delta: Delta) -> None:
    for key, added in delta.arrivals.items():
        state.arrivals.setdefault(key, {}).update(added)
    for key, barrier in delta.barriers.items():
        before = state.barriers.get(key.job_id, {}).get(key)
        _apply_barrier(state, key, barrier)
        if barrier is None:
            state.holding.drop(key)
            continue
        ends = () if before is None else before.ends
        counted = None if barrier.ends is ends else state.counted.get(key, {})
        state.holding.weigh(barrier, delta.arrivals.get(key, {}).items(), counted)


def _apply_barrier(state: State, key: BarrierKey, barrier: Barrier | None) -> None:
    if barrier is None or not barrier.is_open:
        ended = state.arrivals.pop(key, {})
        if ended and barrier is not None:
            counted = state.counted.get(key, {})
            state.counted[key] = count_arrivals(counted, barrier.generation, ended.items())
    if barrier is None or not (barrier.is_open or barrier.ends):
        state.counted.pop(key, None)
    if barrier is not None:
        state.barriers.setdefault(key.job_id, {})[key] = barrier
        return
    of_job = state.barriers.get(key.job_id, {})
    of_job.pop(key, None)
    if not of_job:
        state.barriers.pop(key.job_id, None)


def _apply_node(state: State, session: SessionId, node: Node | None) -> None:
    before = state.nodes.get(session)
    was_heard = before is not None and before.is_heard
    state.heard += (node is not None and node.is_heard) - was_heard
    if node is not None:
        if before is None:
            state.sessions.setdefault(node.job_id, {})[session] = None
        state.nodes[session] = node
        return
    gone = state.nodes.pop(session, None)
    if gone is not None:
        state.sessions[gone.job_id].pop(session, None)
