"""What comes of a move in a small world: the agents' real core, and the shell around it.

The shell is that of `link.py`, `node.py` and `processes.py` without time: what a process does about
something, it does at once.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.core import step as agent_core
from rallypoint.agent.core.model import AgentState
from rallypoint.server.core import effects as fx
from rallypoint.server.core import inputs
from rallypoint.server.core.deadlines import DeadlineKind
from rallypoint.server.core.model import NodeName, SessionId
from rallypoint.server.core.node import Identity
from sim.choices import Kind, Move, due, fence_due_ms
from sim.ghosts import Arena, Ghosts, process_view
from sim.messages import Down, Hangup, claim_of, desired_of, notices_of, ready_of, report_of
from sim.scenario import NodePlan
from sim.server_side import ServerSide
from sim.small import JOB_ID, Bounds, Mishap, Site, Small, Stream, Worker

FIRST_PORT = 20_000
FAREWELL_MS = 1_000
COORDINATOR_TIMEOUT_MS = 10_000
RETRY_MS = 1_000
"""Between attempts to connect; after a connection that was welcome there is no pause."""
SIGTERM, SIGKILL, SIGUSR1 = 15, 9, 10
DRAIN_MS = 2_000
"""What an operator who asks a node to leave gives it."""


def begin(bounds: Bounds, arena: Arena, ghosts: Ghosts) -> Small:
    """Return the beginning: a coordinator, and agents that have not connected yet."""
    empty = Small(0, (), (), None, 0, bounds.faults)
    play = Play(empty, arena, ghosts)
    play.serve()
    for number in range(bounds.nodes):
        play.sites.append(Site(NodeName(arena.plans[number].name), None, may_start=True))
        if number < bounds.nodes - bounds.late:
            play.start_agent(number)
    return play.end()


def plans_of(bounds: Bounds) -> tuple[NodePlan, ...]:
    """Return the nodes that take part."""
    return tuple(
        NodePlan(
            job_id=JOB_ID,
            name=f"n{number}",
            explicit=True,
            address=f"10.0.0.{number + 1}",
            workers=bounds.workers[min(number, len(bounds.workers) - 1)],
            role="default",
            node_rank=None,
            spec=bounds.spec(),
            launch_id="",
            coordinator_timeout_ms=COORDINATOR_TIMEOUT_MS,
            drain_ms=bounds.drain_ms,
            starts_ms=0,
        )
        for number in range(bounds.nodes)
    )


class Play(ServerSide):
    """One move in the making."""

    def make(self, move: Move) -> None:  # noqa: C901  # one flat case per kind
        """Let a move happen."""
        number, place = move.site, move.place
        if isinstance(move.what, Mishap):
            self.faults -= 1
            self._mishap(move.what, number, place)
            return
        match move.what:
            case Kind.UP:
                stream = self.streams[place]
                self.streams[place] = stream._replace(up=stream.up[1:])
                self._arrive_up(place, stream.up[0])
            case Kind.DOWN:
                stream = self.streams[place]
                self.streams[place] = stream._replace(down=stream.down[1:])
                self._arrive_down(place, stream.down[0])
            case Kind.ANSWER:
                said = self.sites[number].said
                self._put(number, said=said[:place] + said[place + 1 :])
                self._post(number, said[place])
            case Kind.SWEEP:
                self._finish_sweep(number)
            case Kind.CONNECT:
                self._connect(number)
            case Kind.START:
                self.start_agent(number)
            case Kind.SERVE:
                self.serve()
            case Kind.TIME:
                self._pass_time()
            case Kind.DONE:
                self._end_worker(number, place, 0, None)
            case Kind.OBEY:
                self._end_worker(number, place, None, SIGTERM)
            case _:
                assert_never(move.what)

    def _mishap(self, what: Mishap, number: int, place: int) -> None:  # noqa: C901  # one flat case each
        match what:
            case Mishap.SEVER:
                self._set(place, up=(Hangup(),), down=(Hangup(),))
            case Mishap.DROP:
                self._let_go(place)
                self._post(number, agent_inputs.Disconnected())
            case Mishap.SKIP:
                first, second, *rest = self.streams[place].down
                assert isinstance(first, Down)
                self._set(place, down=(second, *rest))
            case Mishap.SILENCE if self.arena.plans[number].spec.fence_ms:
                self._fall_silent(number)
            case Mishap.SILENCE:
                self._expire((DeadlineKind.LEASE, self.sites[number].session))
            case Mishap.EARLY:
                self._pass_time()
            case Mishap.FAIL:
                self._end_worker(number, place, 1, None)
            case Mishap.KILL:
                self._end_worker(number, place, None, SIGKILL)
            case Mishap.NO_START:
                self._do_not_start(number)
            case Mishap.DRAIN:
                self._put(number, was_asked=True)
                self._step(inputs.DrainNode(JOB_ID, self.sites[number].name, DRAIN_MS, "repair"))
            case Mishap.TERMINATE:
                self._put(number, was_terminated=True)
                self._post(number, agent_inputs.SignalReceived(SIGTERM))
            case Mishap.CRASH_AGENT:
                self._put(number, may_start=True)
                self._be_gone(number)
            case Mishap.CRASH:
                self._crash()
            case _:
                assert_never(what)

    def _fall_silent(self, number: int) -> None:
        """Let nothing pass between an agent and the coordinator, until a lease has ended."""
        lease_ms = self._own_state().lease_ms(self.arena.plans[number].spec)
        key = (DeadlineKind.LEASE, self.sites[number].session)
        self._own_state().deadlines.set(key, self._journal_ms() + lease_ms)
        place = self._held(number)
        assert place is not None
        until_ms = self.now_ms + lease_ms
        self._set(place, up=(Hangup(),), down=(Hangup(),), held_until_ms=until_ms)

    def _pass_time(self) -> None:
        first = due(self._small())
        assert first is not None
        at_ms, number, key = first
        fenced = number >= 0 and fence_due_ms(self._small(), number) == at_ms
        self.now_ms = max(self.now_ms, at_ms)
        self._confirm_heartbeats()
        if fenced:
            self._kill_workers(number)
        if key is not None:
            self._expire(key)
        elif self.sites[number].exit_by_ms == at_ms:
            self._exit(number)
        elif self.sites[number].agent and self.sites[number].retry_ms != at_ms:
            self._post(number, agent_inputs.TimePassed())

    # --- agents ---

    def start_agent(self, number: int) -> None:
        """Start an agent on a site that has none."""
        site, plan = self.sites[number], self.arena.plans[number]
        incarnation = site.incarnation + 1
        self.sites[number] = Site(
            name=NodeName(plan.name),
            agent=AgentState(
                workers=plan.workers,
                grace_ms=plan.spec.grace_ms,
                drain_ms=plan.drain_ms,
                drain_signal=SIGUSR1,
                fence_ms=plan.spec.fence_ms,
                coordinator_timeout_ms=plan.coordinator_timeout_ms,
                away_since_ms=self.now_ms,
            ),
            incarnation=incarnation,
            was_asked=site.was_asked,
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
        site, plan, state = self.sites[number], self.arena.plans[number], self._agent(number)
        held = state.held
        return inputs.Hello(
            identity=Identity(
                job_id=plan.job_id,
                session=site.session,
                spec=plan.spec,
                name=site.name,
                name_explicit=plan.explicit,
                address=plan.address,
                local_world_size=plan.workers,
                role=plan.role,
                node_rank=plan.node_rank,
                launch_id=plan.launch_id,
            ),
            connection=site.connection,
            epoch=state.epoch,
            run=site.run,
            coordinator_id=site.coordinator_id,
            coordinator_durable=False,
            acknowledged=state.acknowledged,
            revision=state.revision,
            draining=None
            if state.drain is None
            else (max(0, state.drain.until_ms - self.now_ms), state.drain.reason),
            claim=None if held is None else claim_of(held, self.now_ms),
            ready=None if held is not None else ready_of(state.last_round, state.port),
        )

    def _arrive_down(self, place: int, message: Down | Hangup) -> None:
        stream = self.streams[place]
        number, state = stream.site, self._agent(stream.site)
        if isinstance(message, Hangup):
            self._let_go(place)
            if message.dismissal is None:
                self._post(number, agent_inputs.Disconnected())
            else:
                self._put(number, is_closed=True)
                self._post(number, agent_inputs.Dismissed(message.dismissal, message.text))
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
            self._tell(number, stream.life, message.desired.desired)
            desired = desired_of(message.desired.desired)
            revision = message.desired.revision
            self._post(number, agent_inputs.DesiredCame(message.epoch, revision, desired))
        self._take_notices(number, message)
        # Only now: what was desired before may be long over.
        agent = self.sites[number].agent
        if message.welcome is not None and agent is not None and agent.fence_ms:
            self._post(number, agent_inputs.Confirmed(self.now_ms))

    def _take_notices(self, number: int, message: Down) -> None:
        agent = self.sites[number].agent
        if agent is None:
            return
        if message.notify is not None or (message.welcome is not None and agent.notices):
            notices = notices_of(message.notify, self.sites[number].name, self.now_ms)
            self._post(number, agent_inputs.NoticesCame(notices))

    def _tell(self, number: int, life: int, desired: fx.Desired) -> None:
        if isinstance(desired, fx.DesiredFinished):
            self.arena.speaking_life = life
            self.ghosts.hear("told", self.arena.host(number).agent, desired)
            if self.sites[number].told is None and self._agent(number).ending is None:
                self._put(number, told=desired.outcome)

    def _let_go(self, place: int) -> None:
        """Let an agent give its stream up; what it has sent arrives, and then word of the end."""
        self._send_up(place, Hangup())
        self._set(place, agent_holds=False)
        number = self.streams[place].site
        if not self.sites[number].is_welcome:  # an attempt that came to nothing is not the last
            self._put(number, retry_ms=self.now_ms + RETRY_MS)
        self._put(number, is_welcome=False)

    def _post(self, number: int, said: agent_inputs.Input) -> None:
        """Let an agent take an input, and what follows from it at once."""
        pending = deque([said])
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
        self, number: int, effect: agent_inputs.Effect
    ) -> list[agent_inputs.Input]:
        """Carry out an effect; return what the agent hears of at once."""
        site = self.sites[number]
        match effect:
            case agent_inputs.StartWorkers(order=order):
                self.ghosts.hear("ordered", self.arena.host(number).agent, order)
                for local_rank in range(order.local_world_size):
                    self._spawn(number, Worker(0, site.session, order, local_rank))
            case agent_inputs.SignalWorkers():
                self._signal(number)
            case agent_inputs.Sweep(token=token):
                self._signal(number)
                self._put(number, sweep=token)
            case agent_inputs.ReservePort():
                return [self._reserved(number)]
            case agent_inputs.TellWorkers() | agent_inputs.ForwardSignal():
                pass  # no worker here reads notices, or handles a signal
            case agent_inputs.FenceFell():
                pass
            case agent_inputs.ArmFence(at_ms=at_ms):
                self._put(number, fence_at_ms=at_ms)
            case agent_inputs.SendReports():
                pass  # they go out as soon as the agent has taken what it is taking
            case agent_inputs.Exit(code=code):
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
                self._send_up(place, report_of(report, sender, self.now_ms))
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
        self._put(number, agent=None, said=(), exit_due=None, exit_by_ms=None, sweep=0)
        self._kill_workers(number)
        place_held = self._held(number)
        if place_held is not None:
            self._let_go(place_held)

    # --- workers ---

    def _say(self, number: int, said: agent_inputs.Input) -> None:
        if self.sites[number].agent is not None:
            self._put(number, said=(*self.sites[number].said, said))

    def _spawn(self, number: int, worker: Worker) -> None:
        site = self.sites[number]
        pid = 1_000 * (number + 1) + site.pids
        worker = worker._replace(pid=pid)
        self.ghosts.hear("spawned", process_view(self.arena.host(number), worker))
        order = worker.order
        kept = tuple(one for one in site.workers if one.is_alive or one.order is order)
        self._put(number, pids=site.pids + 1, workers=(*kept, worker))
        self._say(number, agent_inputs.WorkerStarted(order.number, worker.local_rank, pid))

    def _signal(self, number: int) -> None:
        site = self.sites[number]
        workers = tuple(
            worker._replace(signalled=True) if worker.is_alive else worker
            for worker in site.workers
        )
        self._put(number, workers=workers)

    def _finish_sweep(self, number: int) -> None:
        self._kill_workers(number)
        self._say(number, agent_inputs.Swept(self.sites[number].sweep))
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
        round, rank = worker.order.number, worker.local_rank
        self._say(number, agent_inputs.WorkerEnded(round, rank, code, signum, None, ""))

    def _do_not_start(self, number: int) -> None:
        """Say of a worker that it could not be started, and take it back."""
        said, *rest = self.sites[number].said
        assert isinstance(said, agent_inputs.WorkerStarted)
        failed = agent_inputs.WorkerNotStarted(said.round, said.local_rank, "no such file")
        ended = (one for one in rest if not _is_end_of(one, said))
        workers = tuple(one for one in self.sites[number].workers if one.pid != said.pid)
        self._put(number, said=(failed, *ended), workers=workers)


def _is_end_of(said: agent_inputs.Input, started: agent_inputs.WorkerStarted) -> bool:
    if not isinstance(said, agent_inputs.WorkerEnded):
        return False
    return (said.round, said.local_rank) == (started.round, started.local_rank)
