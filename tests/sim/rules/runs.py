"""Rules for every run: its budget, its outcome, and that it survives its coordinator."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.held_round import Stage
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import RoundHeader, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.v1.agent_service_pb2 import Finished
from sim.rules.rules import Checker
from sim.world.process import Process
from support.core.decisions import (
    JobUpdated,
    Record,
    RoundSealed,
    RoundSettled,
    RoundStopped,
    RunClosed,
    RunOpened,
)

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.server import Server
    from sim.world.world import World

QUIET_MS = 8_000
"""A round counts as undisturbed after this long without a fault around it."""


class BudgetHolds(Checker):
    """The restart count of a run never exceeds its budget and, within a coordinator's life, never
    falls.

    At a durable coordinator, it is what the end of the round before has made of it.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[tuple[int, JobId], RoundHeader] = {}
        self._settled: dict[tuple[int, JobId], int] = {}
        """The count after the latest round."""

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, RunOpened | RoundSettled):
            self._settled[(server.life, record.job_id)] = record.counts.restart_count
        if not isinstance(record, RoundSealed):
            return
        if server.is_durable:
            self._check_exact(server, record)
        header, key = record.header, (server.life, record.job_id)
        last = self._last.get(key)
        if last is not None and last.run == header.run:
            # An adopted round may have used a budget that an operator had raised at a coordinator
            # without memory: the update is lost with it.
            budget = server.state.jobs[record.job_id].spec.max_restarts
            least = last.restart_count if server.is_durable else min(last.restart_count, budget)
            self.require(header.restart_count >= least, f"{header} after {last}")
            self.require(header.restart_count <= last.restart_count + 1, f"{header} after {last}")
        self._last[key] = header

    def _check_exact(self, server: Server, record: RoundSealed) -> None:
        header, settled = record.header, self._settled[(server.life, record.job_id)]
        self.require(header.restart_count == settled, f"{header} after {settled} restarts")

    def order_received(self, agent: Agent, order: RunOrder) -> None:
        is_within = 0 <= order.header.restart_count <= order.max_restarts
        self.require(is_within, f"restart {order.header.restart_count} of {order.max_restarts}")


class SuccessIsEarned(Checker):
    """A run succeeds only if every worker of its last round exited with 0 and was not stopped."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._current: dict[tuple[int, JobId], RoundHeader] = {}

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, RoundSealed):
            self._current[(server.life, record.job_id)] = record.header
        if not isinstance(record, RunClosed) or record.outcome is not Outcome.SUCCEEDED:
            return
        header = self._current.get((server.life, record.job_id))
        self.require(header is not None, f"{record.job_id} succeeded without a round")
        assert header is not None
        processes = self.world.group(record.job_id, header).processes
        self.require(header.run == record.run, "the round is of another run")
        done = {
            process.rank
            for process in processes
            if process.exit_code == 0 and not process.signalled
        }
        missing = set(range(header.world_size)) - done
        self.require(not missing, f"ranks {missing} of round {header.number} had not succeeded")


class OutcomeIsOne(Checker):
    """All agents of a run receive the same outcome from one coordinator."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._told: dict[tuple[int, JobId, int], tuple[int, int]] = {}

    def outcome_received(self, agent: Agent, finished: Finished) -> None:
        assert agent.link.stream is not None
        key = (agent.link.stream.life, agent.host.plan.job_id, agent.run)
        outcome = (finished.outcome, finished.restart_count)
        first = self._told.setdefault(key, outcome)
        self.require(first == outcome, f"outcome and restarts {first}, then {outcome}")


@dataclass(slots=True)
class _Watch:
    """Workers that must not be disturbed."""

    pids: frozenset[int]
    until_ms: int
    specs: frozenset[JobSpec]
    """Of their agents; a newcomer with another one does not fit."""
    may_grow: bool
    """The round has room, so agents that fit and start meanwhile are a reason to stop it."""
    has_newcomer: bool = False
    """Such an agent has started."""
    stopped_for: RoundReason | None = None
    """Why the round was stopped, by the journal; None while it is not."""


class WorkersDoNotNotice(Checker):
    """No worker of a complete running round is stopped while all that goes wrong is a crash of the
    coordinator, a stall, or a stream that breaks and comes back at once.

    An agent that starts meanwhile is no excuse, whatever its flags. But a round with room may be
    stopped to include it: then the journal has to say so.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._watches: dict[JobId, _Watch] = {}
        self._shaken_ms: dict[JobId, int] = {}
        """Until when not all agents may have reconnected since the faults before."""
        self._running: dict[tuple[int, JobId], RoundHeader] = {}
        """By the journal of each life."""
        self._specs: dict[JobId, JobSpec] = {}
        """By the latest journal."""

    def recorded(self, server: Server, record: Record) -> None:
        match record:
            case RunOpened(job_id=job_id, spec=spec) | JobUpdated(job_id=job_id, spec=spec):
                self._specs[job_id] = spec
            case RoundSealed(job_id=job_id, header=header):
                self._running[(server.life, job_id)] = header
            case RoundStopped(job_id=job_id, reason=reason):
                self._running.pop((server.life, job_id), None)
                if job_id in self._watches:
                    self._watches[job_id].stopped_for = reason
            case RoundSettled(job_id=job_id) | RunClosed(job_id=job_id):
                self._running.pop((server.life, job_id), None)

    def shaken(self, server: Server, until_ms: int, jobs: Collection[JobId]) -> None:
        for job_id in jobs:
            self._watches.pop(job_id, None)
            shaken_ms = self._shaken_ms.get(job_id, -1)
            self._shaken_ms[job_id] = max(shaken_ms, until_ms)
            if shaken_ms >= self.world.clock.now_ms:
                # Not all agents have reconnected since the last fault: no promise covers that.
                continue
            header = self._running.get((server.life, job_id))
            pids = [] if header is None else self._undisturbed(job_id, header)
            if pids:
                assert header is not None
                spec = self._spec_of(job_id)
                may_grow = spec.grow and header.group_world_size < spec.max_nodes
                specs = frozenset(self.world.processes[pid].agent.spec for pid in pids)
                self._watches[job_id] = _Watch(frozenset(pids), until_ms, specs, may_grow)
                self.world.coverage.counts["watched", "rounds"] += 1

    def joined(self, agent: Agent) -> None:
        watch = self._watches.get(agent.host.plan.job_id)
        if watch is not None and self.world.clock.now_ms <= watch.until_ms:
            watch.has_newcomer = watch.has_newcomer or agent.spec in watch.specs
            self.world.coverage.counts["watched", "newcomers"] += 1

    def disturbed(self, job_id: JobId) -> None:
        self._watches.pop(job_id, None)

    def signalled(self, process: Process) -> None:
        watch = self._watches.get(process.host.plan.job_id)
        if watch is None or self.world.clock.now_ms > watch.until_ms:
            return
        is_watched = process.pid in watch.pids
        grows = watch.may_grow and watch.has_newcomer
        is_growth = grows and watch.stopped_for is RoundReason.GROWTH
        if watch.stopped_for is RoundReason.HUNG:
            return  # another rule judges that
        why = watch.stopped_for and watch.stopped_for.value
        self.require(is_growth or not is_watched, f"pid {process.pid} is stopped: {why}")

    def _spec_of(self, job_id: JobId) -> JobSpec:
        return self._specs[job_id]

    def _undisturbed(self, job_id: JobId, header: RoundHeader) -> list[int]:
        """Return the workers of the round if they all run undisturbed, or none."""
        now_ms, spec = self.world.clock.now_ms, self._spec_of(job_id)
        if now_ms < QUIET_MS:
            return []
        hosts = [host for host in self.world.hosts if host.plan.job_id == job_id]
        if any(now_ms - host.disturbed_ms < QUIET_MS for host in hosts):
            return []
        holders = [host.agent for host in hosts if host.agent and _runs(host.agent, header)]
        attached = [host for host in hosts if host.has_agent]
        if any(_is_of_later_number(host.agent, header) for host in hosts if host.agent):
            return []  # without an epoch: the round may be older than the last one here
        could_grow = spec.grow and len(holders) < min(spec.max_nodes, len(attached))
        if len(holders) != header.group_world_size or could_grow:
            return []
        living = self.world.group(job_id, header).living
        return [process.pid for process in living] if len(living) == header.world_size else []


def _is_of_later_number(agent: Agent, header: RoundHeader) -> bool:
    """Return whether a clean agent was in a round of a higher number, under an earlier epoch."""
    return agent.state.held is None and agent.state.last_round > header.number


def _runs(agent: Agent, header: RoundHeader) -> bool:
    """Return whether an agent runs the round and does not want to leave."""
    state = agent.state
    held, desired = state.held, state.desired
    if agent.is_gone or held is None or state.ending is not None or not agent.link.is_welcome:
        return False
    is_wanted = isinstance(desired, RunOrder) and desired == held.order
    is_same = (held.number, held.order.header.epoch) == (header.number, header.epoch)
    return is_wanted and is_same and held.stage is Stage.RUNNING


RUN_RULES: tuple[type[Checker], ...] = (
    BudgetHolds,
    SuccessIsEarned,
    OutcomeIsOne,
    WorkersDoNotNotice,
)
