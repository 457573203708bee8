"""Rules for when workers of two rounds of a job may live at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.agent.core.held_round import Stage
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import RoundHeader
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.step import Transition
from sim.rules.rules import Checker, News
from sim.world.process import Process
from sim.world.wire import header_of
from support.core.decisions import Record, RoundSealed, RoundSettled, RoundStopped, RunClosed

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.server import Server
    from sim.world.world import World

STOP_SLACK_MS = Timing().stop_slack_ms


class OneRoundLives(Checker):
    """Workers of two rounds of a job live at once only where the coordinator cannot prevent it.

    Whenever a round is sealed, and whenever a worker starts, every worker of another round than the
    current one of the journal

    * is on a node that the coordinator's host has not heard in its life, or not for so long since
      the round was sealed that the node counts as lost: without fencing, the workers of a
      partitioned node run on until it hears that they must stop; or
    * is of a round that the coordinator never sealed or adopted with this node: the node came too
      late with a round of an earlier life; or
    * is overdue: the time that a stop may take has passed since the journal has the stop, or the
      time that a start may take has passed without word of it, which sets the node aside; or
    * has survived SIGKILL, and its agent knows that; or
    * is on a node that an operator gave up because it was silent.

    So while no node is lost, overdue, late or given up, no two rounds of a job overlap. What the
    coordinator thinks of the node does not count.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._current: dict[tuple[int, JobId], RoundHeader] = {}
        self._members: dict[tuple[int, JobId, RoundHeader], frozenset[int]] = {}
        """The group ranks of the nodes with which a round was sealed or adopted. Their names may
        differ from those in an earlier life, and an agent may not have heard its new one."""
        self._stopped: dict[tuple[int, JobId], tuple[int, int]] = {}
        """Number of the round that was stopped last, and when, in journal time."""
        self._sealed: dict[tuple[int, JobId], tuple[int, int]] = {}
        """The same of the round that was sealed last."""
        self._slow: set[tuple[int, SessionId, int]] = set()
        """Agents whose start of a round was overdue when it was stopped."""
        self._started: set[tuple[int, SessionId, int]] = set()
        """Rounds of which the coordinator's host has heard that they have started."""
        self._given_up: set[SessionId] = set()

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        if isinstance(input, inputs.CancelJob) and input.give_up_silent_nodes:
            removed = (one for one, node in transition.delta.nodes.items() if node is None)
            self._given_up.update(removed)

    def heard(self, server: Server, agent: Agent, input: News, sent_ms: int) -> None:
        if isinstance(input, inputs.Started):
            self._started.add((server.life, input.sender.session, input.round))

    def spawned(self, process: Process) -> None:
        job_id = process.host.plan.job_id
        server = self.world.server_of(job_id)
        if server is None:
            return
        current = self._current.get((server.life, job_id))
        if header_of(process.order) != current:
            self._require_excuse(server, process)

    def recorded(self, server: Server, record: Record) -> None:
        match record:
            case RoundSealed(job_id=job_id, header=header):
                ranks = frozenset(member.assignment.group_rank for member in record.members)
                self._members[(server.life, job_id, header)] = ranks
                self._current[(server.life, job_id)] = header
                self._sealed[(server.life, job_id)] = (header.number, server.now_ms())
                for host in self.world.hosts:
                    for process in host.processes:
                        is_other = header_of(process.order) != header
                        if host.plan.job_id == job_id and is_other:
                            self._require_excuse(server, process)
            case RoundStopped(job_id=job_id, round=number):
                self._stopped[(server.life, job_id)] = (number, server.now_ms())
                self._note_slow(server, job_id, number)
            case RunClosed(outcome=Outcome.CANCELLED):
                pass  # the order to begin may still be on its way, and the end behind it
            case RoundSettled(job_id=job_id) | RunClosed(job_id=job_id):
                self._current.pop((server.life, job_id), None)

    def _note_slow(self, server: Server, job_id: JobId, number: int) -> None:
        """Note which agents the coordinator may set aside because they have not started."""
        sealed, sealed_ms = self._sealed.get((server.life, job_id), (0, 0))
        if sealed != number or server.now_ms() < sealed_ms + self.world.timing.start_due_ms:
            return
        for session, agent in self.world.agents.items():  # those of strangers, too
            key = (server.life, session, number)
            if agent.host.plan.job_id == job_id and key not in self._started:
                self._slow.add(key)

    def _require_excuse(self, server: Server, process: Process) -> None:
        excuse = self._excuse(server, process)
        self.world.coverage.counts["overlap", excuse or "none"] += 1
        what = f"{process.host.name} runs {process.order}"
        self.require(bool(excuse), f"{what} beside {self._current}")

    def _excuse(self, server: Server, process: Process) -> str:
        """Return why a worker of another round may live; empty if nothing excuses it."""
        agent, plan = process.agent, process.host.plan
        key = (server.life, plan.job_id)
        if server.is_missed(agent.session):
            return "lost"
        if agent.session in self._given_up:
            return "given up"
        members = self._members.get((*key, header_of(process.order)), ())
        if process.order.assignment.group_rank not in members:
            return "late"
        if (server.life, agent.session, process.order.number) in self._slow:
            return "slow"
        number, stopped_ms = self._stopped.get(key, (0, 0))
        is_late = number > process.order.number  # a later round was stopped already
        due_ms = stopped_ms + plan.spec.shutdown_timeout_ms + STOP_SLACK_MS
        if is_late or (number == process.order.number and server.now_ms() >= due_ms):
            return "overdue"
        held = agent.state.held
        knows = held is not None and held.stage is Stage.BLOCKED
        return "blocked" if process.is_blocked and knows else ""


class FenceHolds(Checker):
    """With a fence, no worker starts while one of another round of its job lives anywhere.

    Processes that survived SIGKILL are exempt.
    """

    def spawned(self, process: Process) -> None:
        plan = process.host.plan
        if plan.spec.fence_after_ms == 0:
            return
        for host in self.world.hosts:
            for other in host.processes if host.plan.job_id == plan.job_id else ():
                self.require(
                    other.group.key == process.group.key or other.is_blocked,
                    f"{process.host.name} starts round {process.order.number} while pid "
                    f"{other.pid} of round {other.order.number} lives on {host.name}",
                )


OVERLAP_RULES: tuple[type[Checker], ...] = (OneRoundLives, FenceHolds)
