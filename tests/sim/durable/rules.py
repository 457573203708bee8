"""What everyone may rely on when the coordinator is durable, judged across its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from rallypoint.agent.core.held_round import Stage
from rallypoint.server.core.messages.records import JobForgotten
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Eligibility, NodeState
from rallypoint.server.core.model.round import Round, RoundHeader, RoundReason
from rallypoint.server.core.verdicts.blame import with_older_failures
from rallypoint.server.shell.coordinator import LATE_MS
from sim.rules.rules import Checker
from support.core.decisions import (
    NodeHealthChanged,
    Record,
    RoundSealed,
    RoundSettled,
    RoundStopped,
    RunClosed,
)

if TYPE_CHECKING:
    from sim.durable.readers import Seen
    from sim.world.node import Agent
    from sim.world.process import Process
    from sim.world.server import Server
    from sim.world.world import World

_Place = tuple[int, JobId]
"""A job in one life of the coordinator."""
VOLATILE = frozenset(
    {
        "breaks",
        "first_ready_ms",
        "last_arrival_ms",
        "first_newcomer_ms",
        "forming_since_ms",
        "round",
    }
)
"""Fields of a job that only say what it does at the moment; rounds are compared separately."""
VOLATILE_OF_ROUNDS = frozenset(
    {
        *("notices_sent", "step", "step_ms", "step_gap_ms", "taken_over_ms"),
        *("reached_at", "last_exit_ms", "imported", "process_group"),
    }
)
KEPT_OF_NODES = (
    "identity",
    "name",
    "arrival",
    "member",
    "assignment",
    "last_round",
    "set_aside",
    "hindrance",
    "drain",
    "is_newcomer",
)
KEPT_STATES = frozenset({NodeState.SUCCEEDED, NodeState.BLOCKED})


class RestoredIsWhole(Checker):
    """A coordinator that starts again knows what it knew, whatever was to be done about it.

    Compared is what it decides by: not what was journalled, but what it held in its memory.
    """

    def restored(self, before: Server, after: Server) -> None:
        old, new = before.state, after.state
        self.require(new.epoch > old.epoch, f"epoch {new.epoch} after {old.epoch}")
        # An owner of a shard that is suspended for less takes the time of its turn for that of its
        # append.
        slack_ms = 0 if self.world.fleet is None else LATE_MS
        ran_ms = after.now_ms() - before.now_ms()
        starts = after.boot - before.boot  # some may have ended before they served anyone
        self.require(
            ran_ms <= starts + slack_ms, f"journal time ran {ran_ms} ms while no one was there"
        )
        if self.world.fleet is None:  # an owner may write what another one does not read
            text = f"journal time went back from {before.kept_ms} to {after.now_ms()}"
            self.require(after.now_ms() > before.kept_ms, text)
        self._same("jobs", set(old.jobs), set(new.jobs))
        self._same("nodes", set(old.nodes), set(new.nodes))
        for job_id, job in old.jobs.items():
            self._same_job(job, new.jobs[job_id])
        for session, node in old.nodes.items():
            found = new.nodes[session]
            if node.missed_ms is None:  # from the first start without it
                self._same(f"{node.name} is missed", True, found.missed_ms is not None)
            else:
                self._same(f"time without {node.name}", node.missed_ms, found.missed_ms)
            for name in KEPT_OF_NODES:
                self._same(f"{name} of {node.name}", getattr(node, name), getattr(found, name))
            # A process that ended before its first turn has noted the time, and no end by then.
            is_over = node.eligibility is Eligibility.QUARANTINED
            expected = Eligibility.ELIGIBLE if is_over else node.eligibility
            is_same = found.eligibility in (node.eligibility, expected)
            self.require(is_same, f"{node.name} was {node.eligibility}, is {found.eligibility}")
            if node.member and node.state in KEPT_STATES:
                self._same(f"state of {node.name}", node.state, found.state)
        for name in ("barriers", "arrivals", "counted", "gone", "index"):
            self._same(name, getattr(old, name), getattr(new, name))
        self._same("keys", old.keys, new.keys)
        events = old.events.find(None, 0, 1 << 30).events
        found_events = new.events.find(None, 0, 1 << 30).events
        while len(found_events) > len(events) and found_events[-1].reason == "quarantine_ended":
            found_events.pop()  # it is in the first batch of this life
        self._same("events", events, found_events)
        self.world.coverage.counts["event", "coordinator restored"] += 1

    def _same_job(self, old: Job, new: Job) -> None:
        self._same_fields(f"of {old.job_id}", old, new, VOLATILE)
        text = f"{new.job_id} forms since {new.forming_since_ms}, and had since before"
        self.require(new.forming_since_ms >= old.forming_since_ms, text)
        self._same(f"round of {old.job_id}", old.round is None, new.round is None)
        before, after = (job.round.failures if job.round else () for job in (old, new))
        if before and after:  # they became older meanwhile, all by as much
            by_ms = (before[0].exit.at_ms or 0) - (after[0].exit.at_ms or 0)
            self.require(by_ms >= 0, f"failures of {old.job_id} are {-by_ms} ms younger")
            assert old.round is not None
            old = replace(old, round=with_older_failures(old.round, by_ms))
        if isinstance(old.round, Round):
            assert new.round is not None
            what = f"of round {old.round.header.number}"
            self._same_fields(what, old.round, new.round, VOLATILE_OF_ROUNDS)

    def _same_fields(self, what: str, old: Any, new: Any, but: frozenset[str]) -> None:
        found = asdict(new)
        for name, value in asdict(old).items():
            if name not in but:
                self._same(f"{name} {what}", value, found[name])

    def _same(self, what: str, old: object, new: object) -> None:
        if old != new:  # the text takes long
            self.require(False, f"{what}\n  was {old}\n  is  {new}")


class NothingIsTakenBack(Checker):
    """What a reader has seen stays true: numbers only grow, and what has ended has ended so.

    A round that was seen is the present one, or it is in the history. A job that was seen is there
    until it is deleted or forgotten, and so is a cordon until it is lifted. Without a journal this
    holds as long as the process lives.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen: dict[_Place, Seen] = {}
        self._cordons: dict[_Place, set[NodeName]] = {}

    def recorded(self, server: Server, record: Record) -> None:
        match record:
            case JobForgotten(job_id=job_id):
                for known in (self._seen, self._cordons):
                    known.pop((server.life, job_id), None)
            case NodeHealthChanged(job_id=job_id, health=health) if not health.cordoned:
                self._cordons.get((server.life, job_id), set()).discard(health.name)

    def read(self, server: Server, job_id: JobId, seen: Seen | None) -> None:
        """Someone has read a job; None: there is no such job."""
        place = (server.life, job_id)
        before = self._seen.get(place)
        if seen is None:
            self.require(before is None, f"{job_id} was there, and is not there any more")
            return
        cordons = self._cordons.setdefault(place, set())
        self.require(cordons <= seen.cordoned, f"{cordons} were cordoned, now {seen.cordoned} are")
        cordons |= seen.cordoned
        self._seen[place] = seen
        if before is not None:
            self._compare(server, before, seen)

    def _compare(self, server: Server, before: Seen, now: Seen) -> None:
        self.require(now.epoch >= before.epoch, f"epoch {now.epoch} after {before.epoch}")
        text = f"revision {now.revision} after {before.revision}"
        self.require(now.revision >= before.revision, text)
        places = (before.run, before.round), (now.run, now.round)
        self.require(places[0] <= places[1], f"run and round {places[1]} after {places[0]}")
        if now.run == before.run:
            counts = (before.restart_count, now.restart_count)
            self.require(counts[0] <= counts[1], f"{counts[1]} restarts after {counts[0]}")
            is_open = before.outcome is None
            text = f"run {now.run} had ended {before.outcome}, and now {now.outcome}"
            self.require(is_open or before.outcome == now.outcome, text)
        else:
            ended = dict(now.runs).get(before.run)
            is_kept = ended is not None and before.outcome in (None, ended)
            text = f"run {before.run} was {before.outcome}, and is {ended} in {now.runs}"
            # Without a journal, an agent may come that knows a later run.
            is_exempt = not (server.is_durable and now.has_all_runs)
            self.require(is_kept or is_exempt, text)
        runs = dict(now.runs)
        for run, outcome in before.runs:
            self.require(runs.get(run, outcome) == outcome, f"run {run} had ended {outcome}")
        rounds = dict(now.history)
        for number, facts in before.history:
            text = f"round {number} was {facts!r}, and is {rounds.get(number)!r}"
            is_kept = number in rounds or len(rounds) == now.history_max
            self.require(is_kept and rounds.get(number, facts) == facts, text)
        has_ended = before.current and before.current != now.current
        is_kept = before.current in rounds or len(rounds) == now.history_max
        self.require(not has_ended or is_kept, f"round {before.current} is nowhere: {rounds}")


@dataclass(slots=True)
class _Watch:
    """A round that ran when the coordinator's process ended."""

    header: RoundHeader
    pids: frozenset[int]
    agents: tuple[Agent, ...]
    stopped_for: RoundReason | None = None


_OWN = frozenset({RoundReason.NODE_LOST, RoundReason.START_OVERDUE, RoundReason.WORKER_FAILED})
"""Why a coordinator would stop a round if it mistook its own absence for that of a node."""


class CrashesCostNothing(Checker):
    """No worker is stopped because a durable coordinator has ended and started again.

    A round in which all was well then, and whose members have all returned in time, is not stopped
    for a loss or a failure, unless there was another one since. Another agent may take the name or
    the rank of one that has not returned yet.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._running: dict[JobId, RoundHeader] = {}
        self._watches: dict[JobId, _Watch] = {}

    def recorded(self, server: Server, record: Record) -> None:
        if not server.is_durable:
            return
        match record:
            case RoundSealed(job_id=job_id, header=header):
                self._running[job_id] = header
                self._watches.pop(job_id, None)
            case RoundStopped(job_id=job_id, reason=reason):
                self._running.pop(job_id, None)
                self._judge(server, job_id, reason)
            case RoundSettled(job_id=job_id) | RunClosed(job_id=job_id):
                self._running.pop(job_id, None)
                self._watches.pop(job_id, None)

    def crashed(self, server: Server) -> None:
        if not server.is_durable:
            return
        for job_id, header in self._running.items():
            if job_id not in server.state.jobs:
                continue  # of another shard, whose owner has not crashed
            group = self.world.group(job_id, header)
            agents = tuple(dict.fromkeys(process.agent for process in group.processes))
            is_whole = len(agents) == header.group_world_size
            if is_whole and all(_is_well(agent, header) for agent in agents):
                pids = frozenset(process.pid for process in group.living)
                self._watches[job_id] = _Watch(header, pids, agents)

    def _judge(self, server: Server, job_id: JobId, reason: RoundReason) -> None:
        watch = self._watches.pop(job_id, None)
        if watch is None or reason not in _OWN:
            return
        group = self.world.group(job_id, watch.header)
        is_well = all(_is_well(agent, watch.header) for agent in watch.agents)
        is_here = not any(server.is_missed(agent.session) for agent in watch.agents)
        has_failed = any(_has_failed(process) for process in group.processes)
        is_replaced = any(self._has_rival(agent) for agent in watch.agents)
        text = f"{watch.header} is stopped: {reason.value}"
        self.require(not (is_well and is_here) or has_failed or is_replaced, text)
        self.world.coverage.counts["watched", "crashes"] += 1

    def _has_rival(self, agent: Agent) -> bool:
        """Return whether another agent has come by the name or the rank of this one."""
        mine = agent.host.plan
        for other in self.world.agents.values():
            theirs = other.host.plan
            has_name = theirs.explicit and theirs.name == agent.name
            has_rank = theirs.node_rank is not None and theirs.node_rank == mine.node_rank
            is_other = other is not agent and theirs.job_id == mine.job_id
            if is_other and not other.is_gone and (has_name or has_rank):
                return True
        return False


def _is_well(agent: Agent, header: RoundHeader) -> bool:
    held = agent.state.held
    if agent.is_gone or held is None or agent.state.ending is not None:
        return False
    is_same = (held.number, held.order.header.epoch) == (header.number, header.epoch)
    return is_same and held.stage in (Stage.RUNNING, Stage.SUCCEEDED)


def _has_failed(process: Process) -> bool:
    is_success = process.is_alive or process.exit_code == 0
    return not is_success or process.found_ms is not None


DURABLE_RULES: tuple[type[Checker], ...] = (
    RestoredIsWhole,
    NothingIsTakenBack,
    CrashesCostNothing,
)
