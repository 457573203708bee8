"""What a move does in a small world, and the state that a search begins with."""

from __future__ import annotations

from typing import assert_never

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.state.deadlines import DeadlineKind
from sim.seeds.scenario import NodePlan
from sim.small.agent_side import AgentSide
from sim.small.choices import Kind, Move, due, fence_due_ms
from sim.small.ghosts import Arena, Ghosts
from sim.small.messages import Down
from sim.small.small import JOB_ID, Bounds, Mishap, Site, Small
from sim.world.wire import Hangup

COORDINATOR_TIMEOUT_MS = 10_000
SIGTERM, SIGKILL = 15, 9
DRAIN_MS = 2_000
"""Time that an operator gives a node to drain."""


def begin(bounds: Bounds, arena: Arena, ghosts: Ghosts) -> Small:
    """Return the first state: a coordinator, and agents that have not connected yet."""
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


class Play(AgentSide):
    """One move in progress."""

    def make(self, move: Move) -> None:  # noqa: C901  # one flat case per kind
        """Make a move."""
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
                answers = self.sites[number].answers
                self._put(number, answers=answers[:place] + answers[place + 1 :])
                self._post(number, answers[place])
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
            case Mishap.SILENCE if self.arena.plans[number].spec.fence_after_ms:
                self._fall_silent(number)
            case Mishap.SILENCE:
                self._put(number, was_missed=True)
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
        self._put(number, was_missed=True)

    def _pass_time(self) -> None:
        first = due(self._small())
        assert first is not None
        at_ms, number, key = first
        fenced = number >= 0 and fence_due_ms(self._small(), number) == at_ms
        self.now_ms = self.arena.agents_ms = max(self.now_ms, at_ms)
        self._confirm_heartbeats()
        if fenced:
            self._kill_workers(number)
        if key is not None:
            self._expire(key)
        elif self.sites[number].exit_by_ms == at_ms:
            self._exit(number)
        elif self.sites[number].agent and self.sites[number].retry_ms != at_ms:
            self._post(number, agent_inputs.TimePassed())
