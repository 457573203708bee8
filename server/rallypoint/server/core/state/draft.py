"""One step's view of the state: the state before it, and the step's changes.

A step reads through its draft to the state and keeps its own changes beside it. So a step that is
refused or fails changes nothing, and the cost of a step depends only on the entries that it
touches.
"""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.server.core.messages.effects import Effect, JobChanged
from rallypoint.server.core.messages.records import EventsLogged, Record
from rallypoint.server.core.model.barrier import Arrival, Barrier, BarrierKey, Participant
from rallypoint.server.core.model.events import Emitted, Facts
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.job import Gone, Job
from rallypoint.server.core.model.network import NetworkSuspicion
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.state.deadlines import OF_JOBS, DeadlineKey, DeadlineKind
from rallypoint.server.core.state.revisions import PER_EPOCH
from rallypoint.server.core.state.state import Delta, IndexKey, KeyChange, State
from rallypoint.server.core.state.tally import Tally, difference, tally_of


class Draft:
    """One step's view of the state: the state before it, plus its changes."""

    def __init__(self, state: State, now_ms: int) -> None:
        """Begin a step over `state` at `now_ms`."""
        self.state = state
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.records: list[Record] = []
        self.touched: dict[SessionId, None] = {}
        """Nodes whose desired state may have changed."""
        self.resend: set[SessionId] = set()
        """Nodes to which the desired state is sent although it has not changed."""
        self.leaving: list[tuple[SessionId, str]] = []
        """Nodes that sent Goodbye in this step, with the text of each."""
        self._epoch: int | None = None
        self._jobs: dict[JobId, Job | None] = {}
        self._nodes: dict[SessionId, Node | None] = {}
        self._added: dict[JobId, dict[SessionId, None]] = {}
        self._index: dict[IndexKey, SessionId | None] = {}
        self._tallies: dict[JobId, Tally] = {}
        self._deadlines: dict[DeadlineKey, int | None] = {}
        self._barriers: dict[BarrierKey, Barrier | None] = {}
        self._arrivals: dict[BarrierKey, dict[Participant, Arrival]] = {}
        self._keys: list[KeyChange] = []
        self._emitted: list[Emitted] = []
        self._logged: EventsLogged | None = None
        self._window_closed = False
        self._network: NetworkSuspicion | None = None
        self._gone: dict[JobId, Gone] = {}

    @property
    def epoch(self) -> int:
        """The coordinator's epoch."""
        return self.state.epoch if self._epoch is None else self._epoch

    def raise_epoch(self, epoch: int) -> None:
        """Use a higher epoch from now on."""
        self._epoch = epoch

    @property
    def next_revision(self) -> int:
        """The first revision that this step gives: what readers have seen has a lower one."""
        return max(self.state.revision, self.epoch * PER_EPOCH) + 1

    @property
    def window_is_open(self) -> bool:
        """True while the coordinator only listens for rounds to adopt."""
        return self.state.window_until_ms > 0 and not self._window_closed

    def awaits_adoption(self, job_id: JobId) -> bool:
        """Return whether the rounds that agents hold still count for the job: none may be sealed.

        The window closes for all jobs at once. Each is adopted in a separate step, and other
        inputs may come in between.
        """
        return self.window_is_open or self.deadline(DeadlineKind.ADOPT, job_id) is not None

    @property
    def network(self) -> NetworkSuspicion:
        """Whether the network between the coordinator and its agents is suspected."""
        return self.state.network if self._network is None else self._network

    def is_network_suspected(self, job: Job) -> bool:
        """Return whether a broken stream of the job counts as a fault of the network."""
        return self.network.is_active(self.now_ms) or job.breaks.is_active(self.now_ms)

    def put_network(self, network: NetworkSuspicion) -> None:
        """Replace the suspicion of the network."""
        self._network = network

    def close_window(self) -> None:
        """Allow rounds to be sealed from now on."""
        self._window_closed = True

    def job(self, job_id: JobId) -> Job | None:
        """Return a job, or None."""
        if job_id in self._jobs:
            return self._jobs[job_id]
        return self.state.jobs.get(job_id)

    def require_job(self, job_id: JobId) -> Job:
        """Return a job that must exist."""
        job = self.job(job_id)
        assert job is not None, job_id
        return job

    def put_job(self, job: Job) -> None:
        """Add or replace a job."""
        self._jobs[job.job_id] = job

    def remove_job(self, job_id: JobId, left: Gone) -> None:
        """Forget a job without nodes, but for what remains."""
        self._jobs[job_id] = None
        self._gone[job_id] = left
        self._tallies[job_id] = Tally()
        for kind in OF_JOBS:
            self.set_deadline(kind, job_id, None)

    def gone(self, job_id: JobId) -> Gone:
        """Return what remains of a job that is gone; blank when nothing does."""
        return self._gone.get(job_id) or self.state.gone.get(job_id) or Gone()

    def changed_jobs(self) -> list[JobId]:
        """Return the jobs that were changed, or whose nodes were, in order of first change."""
        jobs = dict.fromkeys(self._jobs)
        for session, node in self._nodes.items():
            known = node or self.state.nodes.get(session)
            if known is not None:
                jobs[known.job_id] = None
        return list(jobs)

    def emit(self, job_id: JobId, reason: str, also: Facts = (), **facts: str | int) -> None:
        """Emit an event of the job for its readers and the log.

        Args:
            job_id: the job.
            reason: a past-tense name in `EVENTS`.
            also: facts that the log does not need.
            facts: what the log line says.
        """
        job = self.job(job_id) or self.state.jobs.get(job_id)
        run, round = (0, 0) if job is None else (job.run, job.round_number)
        logged = tuple(facts.items())
        self._emitted.append(Emitted(job_id, reason, run, round, logged + also))
        self.effects.append(JobChanged(job_id, reason, logged))

    def log_events(self) -> None:
        """Give the events of the step their numbers, at its end."""
        if self._emitted:
            events = self.state.events.number(self._emitted, self.now_ms, self.epoch)
            self._logged = EventsLogged(events)
            self.records.append(self._logged)

    def node(self, session: SessionId) -> Node | None:
        """Return a node, or None."""
        if session in self._nodes:
            return self._nodes[session]
        return self.state.nodes.get(session)

    def require_node(self, session: SessionId) -> Node:
        """Return the current value of a node that must exist."""
        node = self.node(session)
        assert node is not None, session
        return node

    def tally(self, job_id: JobId) -> Tally:
        """Return the counts of a job's nodes."""
        tally = self._tallies.get(job_id)
        return tally if tally is not None else self.state.tally(job_id)

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
        """Derive the desired state of every node of the job again at the end of the step."""
        for node in self.nodes_of(job_id):
            self.touched[node.session] = None

    def put_node(self, node: Node) -> None:
        """Add or replace a node and update the tally."""
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
        else:
            gain = difference(old, node)
            if gain is not None:
                self._tallies[job_id] = tally.plus(gain, 1)
        self._nodes[session] = node
        self.touched[session] = None

    def remove_node(self, node: Node) -> None:
        """Remove a node and update the tally."""
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

    def barrier(self, key: BarrierKey) -> Barrier | None:
        """Return a barrier that is open or remembered, or None."""
        if key in self._barriers:
            return self._barriers[key]
        return self.state.barriers.get(key.job_id, {}).get(key)

    def barriers_of(self, job_id: JobId) -> list[Barrier]:
        """Return the barriers of a job, in order of their first use."""
        known = dict.fromkeys(self.state.barriers.get(job_id, ()))
        known.update(dict.fromkeys(key for key in self._barriers if key.job_id == job_id))
        found = (self.barrier(key) for key in known)
        return [barrier for barrier in found if barrier is not None]

    def idle_barrier(self, job_id: JobId) -> Barrier | None:
        """Return the oldest barrier of a job at which no one waits, or None."""
        known = (self.barrier(key) for key in self.state.barriers.get(job_id, ()))
        return next((one for one in known if one is not None and not one.is_open), None)

    def put_barrier(self, barrier: Barrier) -> None:
        """Add or replace a barrier; the arrivals of one that is not open are dropped."""
        self._barriers[barrier.key] = barrier

    def remove_barrier(self, key: BarrierKey) -> None:
        """Forget a barrier."""
        self._barriers[key] = None

    def arrival(self, key: BarrierKey, participant: Participant) -> Arrival | None:
        """Return the arrival of a participant at an open barrier, or None."""
        for arrivals in (self._arrivals, self.state.arrivals):
            found = arrivals.get(key, {}).get(participant)
            if found is not None:
                return found
        return None

    def arrivals_of(self, key: BarrierKey) -> dict[Participant, Arrival]:
        """Return all who have arrived at an open barrier, in order of arrival. Copies them."""
        return self.state.arrivals.get(key, {}) | self._arrivals.get(key, {})

    def add_arrival(self, key: BarrierKey, participant: Participant, arrival: Arrival) -> None:
        """Add a participant of an open barrier."""
        self._arrivals.setdefault(key, {})[participant] = arrival

    def change_keys(self, change: KeyChange) -> None:
        """Change keys at the end of the step, which does not see the change itself."""
        self._keys.append(change)
        self.records.append(change)

    def deadline(self, kind: DeadlineKind, subject: str) -> int | None:
        """Return when something is due, or None."""
        key = (kind, subject)
        if key in self._deadlines:
            return self._deadlines[key]
        return self.state.deadlines.get(key)

    def set_deadline(self, kind: DeadlineKind, subject: str, at_ms: int | None) -> None:
        """Set, move or (None) drop a deadline."""
        self._deadlines[(kind, subject)] = at_ms

    def delta(self, revised: tuple[JobId, ...] = ()) -> Delta:
        """Return the changes made so far; `revised` are the jobs that look different to readers."""
        return Delta(
            epoch=self._epoch,
            jobs=self._jobs,
            nodes=self._nodes,
            entries=self._index,
            tallies=self._tallies,
            deadlines=self._deadlines,
            window_closed=self._window_closed,
            network=self._network,
            barriers=self._barriers,
            arrivals=self._arrivals,
            keys=self._keys,
            events=self._logged,
            gone=self._gone,
            revised=revised,
        )
