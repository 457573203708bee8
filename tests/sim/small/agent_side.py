"""The agents' side of a small world: their real core, and the shell around it.

The shell is that of `link.py`, `node.py` and `processes.py` without time: what a process does about
something, it does at once.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from rallypoint.agent.core import effects as agent_effects
from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.core import step as agent_core
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.session.dismissal import Dismissed
from rallypoint.agent.session.link import FAREWELL_S_MAX
from rallypoint.agent.session.translate import fill_snapshot, report_message
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Send
from rallypoint.server.core.model.ids import NodeName, SessionId
from sim.small.ghosts import process_view
from sim.small.messages import Down, desired_of, finished_of, hello_of, notices_of, report_of
from sim.small.server_side import ServerSide
from sim.small.small import Site, Stream, Worker
from sim.world.wire import Hangup, ending_of, outcome_of, settings_of

FIRST_PORT = 20_000
FAREWELL_MS = int(FAREWELL_S_MAX * 1000)
RETRY_MS = 1_000
"""Pause between attempts to connect; after a Welcome there is none."""
SIGKILL, SIGUSR1 = 9, 10


class AgentSide(ServerSide):
    """One move in progress: what it does to the agents and to their workers."""

    # --- agents ---

    def start_agent(self, number: int) -> None:
        """Start an agent on a site that has none."""
        site, plan = self.sites[number], self.arena.plans[number]
        incarnation = site.incarnation + 1
        self.sites[number] = Site(
            name=NodeName(plan.name),
            agent=AgentState(
                workers=plan.workers,
                shutdown_timeout_ms=plan.spec.shutdown_timeout_ms,
                drain_ms=plan.drain_ms,
                drain_signal=SIGUSR1,
                fence_ms=plan.spec.fence_after_ms,
                coordinator_timeout_ms=plan.coordinator_timeout_ms,
                away_since_ms=self.now_ms,
            ),
            incarnation=incarnation,
            session=SessionId(f"{number + 1:016x}{incarnation:016x}"),
            ports=site.ports,
            pids=site.pids,
            workers=tuple(worker for worker in site.workers if worker.exit_code == 0),
        )
        self._reserve_port(number)

    def _connect(self, number: int) -> None:
        assert self.coordinator is not None
        site = self.sites[number]
        self._put(number, connection=site.connection + 1, is_welcome=False, sent=0)
        hello = self._hello(number)
        stream = Stream(number, site.session, site.connection + 1, self.coordinator.life, (hello,))
        self.streams.append(stream)

    def _hello(self, number: int) -> inputs.Hello:
        site, state = self.sites[number], self._agent(number)
        settings = settings_of(
            self.arena.plans[number], self.arena.plans[number].spec, site.session
        )
        hello = settings.hello(
            address=settings.address,
            node_name=site.name,
            run=site.run,
            coordinator_id=site.coordinator_id,
            coordinator_durable=False,
        )
        fill_snapshot(hello, state, self.now_ms)
        return hello_of(hello, site.session, site.connection, state.epoch)

    def _arrive_down(self, place: int, message: Down | Hangup) -> None:
        stream = self.streams[place]
        number, state = stream.site, self._agent(stream.site)
        if isinstance(message, Hangup):
            self._let_go(place)
            ending = ending_of(message)
            if isinstance(ending, Dismissed):
                self._put(number, is_closed=True, dismissed=ending.exit_code)
                self._post(number, agent_inputs.Dismissed(ending.exit_code, ending.text))
            else:
                self._post(number, agent_inputs.Disconnected())
            return
        if message.connection != self.sites[number].connection or message.epoch < state.epoch:
            return
        if message.acknowledged:
            self._post(number, agent_inputs.Acknowledged(message.acknowledged))
        if message.welcome is not None and self.sites[number].agent is not None:
            name, run = message.welcome.name, message.welcome.run
            coordinator_id = message.coordinator_id
            self._put(number, is_welcome=True, name=name, run=run, coordinator_id=coordinator_id)
            self._post(number, agent_inputs.Welcomed(message.epoch))
        if message.desired is not None and self.sites[number].agent is not None:
            self._tell(number, stream.life, message.desired)
            self._post(number, _received(message, message.desired, self.now_ms))
        self._take_notices(number, message)
        # Only now: before, an outdated desired state could still start workers.
        agent = self.sites[number].agent
        if message.welcome is not None and agent is not None and agent.fence_ms:
            self._post(number, agent_inputs.Confirmed(self.now_ms))

    def _take_notices(self, number: int, message: Down) -> None:
        agent = self.sites[number].agent
        if agent is None:
            return
        if message.notify is not None or (message.welcome is not None and agent.notices):
            notices = notices_of(message.notify, self.now_ms)
            self._post(number, agent_inputs.NoticesReceived(notices))

    def _tell(self, number: int, life: int, send: Send) -> None:
        finished = finished_of(send)
        if finished is not None:
            self.arena.speaking_life = life
            self.ghosts.hear("outcome_received", self.arena.host(number).agent, finished)
            if self.sites[number].outcome is None and self._agent(number).ending is None:
                self._put(number, outcome=outcome_of(finished))

    def _let_go(self, place: int) -> None:
        """Let an agent give up its stream; what it has sent arrives, then the end."""
        self._send_up(place, Hangup())
        self._set(place, agent_holds=False)
        number = self.streams[place].site
        if not self.sites[number].is_welcome:  # a failed attempt is not the last
            self._put(number, retry_ms=self.now_ms + RETRY_MS)
        self._put(number, is_welcome=False)

    def _post(self, number: int, input: agent_inputs.Input) -> None:
        """Apply an input to an agent, and what follows from it at once."""
        pending = deque([input])
        while pending:
            before = self._agent(number)
            state, effects = agent_core.step(before, pending.popleft(), self.now_ms)
            self._put(number, agent=state)
            self.ghosts.hear("agent_stepped", self.arena.host(number).agent, before, state)
            for effect in effects:
                pending += self._do(number, effect)
        self._send_reports(number)
        site, state = self.sites[number], self._agent(number)
        is_quiet = not state.reports or state.away_since_ms is not None
        if site.exit_due is not None and is_quiet:
            self._exit(number)

    def _do(  # noqa: C901  # one flat case per effect
        self, number: int, effect: agent_effects.Effect
    ) -> list[agent_inputs.Input]:
        """Carry out an effect; return the inputs that follow at once."""
        site = self.sites[number]
        match effect:
            case agent_effects.StartWorkers(order=order):
                self.ghosts.hear("order_received", self.arena.host(number).agent, order)
                for local_rank in range(order.assignment.local_world_size):
                    self._spawn(number, Worker(0, site.session, order, local_rank))
            case agent_effects.SignalWorkers():
                self._signal(number)
            case agent_effects.Sweep(token=token):
                self._signal(number)
                self._put(number, sweep=token)
            case agent_effects.ReservePort():
                return [self._reserved(number)]
            case agent_effects.WriteNotices() | agent_effects.ForwardSignal():
                pass  # no worker here reads notices, or handles a signal
            case agent_effects.LogFence() | agent_effects.LogOutcomeAwaited():
                pass
            case agent_effects.LogSurvivors():
                pass
            case agent_effects.LogDropped():
                raise AssertionError(f"{site.name} drops {effect}")
            case agent_effects.ArmFence(at_ms=at_ms):
                self._put(number, fence_at_ms=at_ms)
            case agent_effects.SendReports():
                pass  # they are sent as soon as the agent has applied its input
            case agent_effects.Exit(code=code):
                self._put(number, exit_due=code, exit_by_ms=self.now_ms + FAREWELL_MS)
            case _:
                assert_never(effect)
        return []

    def _reserve_port(self, number: int) -> None:
        self._post(number, self._reserved(number))

    def _reserved(self, number: int) -> agent_inputs.PortReserved:
        ports = self.sites[number].ports + 1
        self._put(number, ports=ports)
        return agent_inputs.PortReserved(FIRST_PORT + ports)

    def _send_reports(self, number: int) -> None:
        site, state = self.sites[number], self._agent(number)
        place = self._held(number)
        if place is None or not site.is_welcome:
            return
        for sequence, report in enumerate(state.reports, state.acknowledged + 1):
            if sequence > site.sent:
                sender = inputs.Sender(site.session, site.connection, state.epoch, sequence)
                message = report_message(report, self.now_ms)
                self._send_up(place, report_of(message, sender, state.workers))
                self._put(number, sent=sequence)

    def _held(self, number: int) -> int | None:
        for place, stream in enumerate(self.streams):
            if stream.site == number and stream.agent_holds:
                return place
        return None

    def _exit(self, number: int) -> None:
        self.ghosts.hear("exited", self.arena.host(number).agent)
        self._be_gone(number)

    def _be_gone(self, number: int) -> None:
        """End an agent, and with it everything that it started."""
        self._put(number, agent=None, answers=(), exit_due=None, exit_by_ms=None, sweep=0)
        self._kill_workers(number)
        place_held = self._held(number)
        if place_held is not None:
            self._let_go(place_held)

    # --- workers ---

    def _answer(self, number: int, answer: agent_inputs.Input) -> None:
        if self.sites[number].agent is not None:
            self._put(number, answers=(*self.sites[number].answers, answer))

    def _spawn(self, number: int, worker: Worker) -> None:
        site = self.sites[number]
        pid = 1_000 * (number + 1) + site.pids
        worker = worker._replace(pid=pid)
        self.ghosts.hear("spawned", process_view(self.arena.host(number), worker))
        order = worker.order
        kept = tuple(one for one in site.workers if one.is_alive or one.order is order)
        self._put(number, pids=site.pids + 1, workers=(*kept, worker))
        self._answer(number, agent_inputs.WorkerStarted(order.number, worker.local_rank, pid))

    def _signal(self, number: int) -> None:
        site = self.sites[number]
        workers = tuple(
            worker._replace(signalled=True) if worker.is_alive else worker
            for worker in site.workers
        )
        self._put(number, workers=workers)

    def _finish_sweep(self, number: int) -> None:
        self._kill_workers(number)
        self._answer(number, agent_inputs.Swept(self.sites[number].sweep))
        self._put(number, sweep=0)

    def _kill_workers(self, number: int) -> None:
        for place, worker in enumerate(self.sites[number].workers):
            if worker.is_alive:
                self._end_worker(number, place, None, SIGKILL)

    def _end_worker(self, number: int, place: int, code: int | None, signum: int | None) -> None:
        workers = list(self.sites[number].workers)
        worker = workers[place]
        workers[place] = worker._replace(is_alive=False, exit_code=code, signal=signum)
        self._put(number, workers=tuple(workers))
        end = agent_inputs.WorkerEnded(
            *(worker.order.number, worker.local_rank, code, signum, None, ""),
            at_ms=self.now_ms,
            signalled_ms=self.now_ms if worker.signalled else None,
        )
        self._answer(number, end)

    def _do_not_start(self, number: int) -> None:
        """Report that a worker could not be started, and remove it."""
        answer, *rest = self.sites[number].answers
        assert isinstance(answer, agent_inputs.WorkerStarted)
        failed = agent_inputs.WorkerNotStarted(answer.round, answer.local_rank, "no such file")
        ended = (one for one in rest if not _is_end_of(one, answer))
        workers = tuple(one for one in self.sites[number].workers if one.pid != answer.pid)
        self._put(number, answers=(failed, *ended), workers=workers)


def _received(message: Down, send: Send, now_ms: int) -> agent_inputs.DesiredReceived:
    return desired_of(send, message.epoch, now_ms)


def _is_end_of(answer: agent_inputs.Input, started: agent_inputs.WorkerStarted) -> bool:
    if not isinstance(answer, agent_inputs.WorkerEnded):
        return False
    return (answer.round, answer.local_rank) == (started.round, started.local_rank)
