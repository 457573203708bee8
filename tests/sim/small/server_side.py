"""The coordinator's side of a small world: its real core, and the shell around it.

The shell is that of `server.py` without time: each message is a separate turn, what it causes is
sent at once, and heartbeats go without saying.
"""

from __future__ import annotations

import dataclasses
from typing import Any, assert_never

from msgspec.structs import replace

from rallypoint.agent.core.state import AgentState
from rallypoint.server.contract.errors import lost_status, refusal_status
from rallypoint.server.core.memory.replay import memory_of, replay, snapshot
from rallypoint.server.core.messages import effects as fx
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.state.deadlines import DeadlineKey, DeadlineKind
from rallypoint.server.core.state.state import State
from sim.small.choices import is_ended
from sim.small.ghosts import Arena, Ghosts, server_view
from sim.small.messages import Down, coordinator_id
from sim.small.small import (
    NEVER_MS,
    TIMING,
    Coordinator,
    Small,
    Stream,
    copied,
    is_heard,
    is_missed,
    state_key,
)
from sim.world.turns import Steps
from sim.world.wire import Hangup
from support.core.decisions import RoundSealed

FIRST_EPOCH = 1_000_000


class ServerSide:
    """One move in progress: lists where `Small` has tuples."""

    def __init__(self, small: Small, arena: Arena, ghosts: Ghosts) -> None:
        self.now_ms = small.now_ms
        self.sites = list(small.sites)
        self.streams = list(small.streams)
        self.coordinator = small.coordinator
        self.lives = small.lives
        self.faults = small.faults
        self.ghosts = ghosts
        self.arena = arena
        self.notes: list[str] = []
        """What the coordinator decided, for a trace."""
        self._state: State | None = None
        """The coordinator's, copied; set once it has taken a step."""
        arena.sites = self.sites
        arena.agents_ms = small.now_ms
        arena.coordinator = small.coordinator

    def end(self) -> Small:
        """Return the state after the move."""
        self._tidy()
        self._confirm_heartbeats()
        server = self.coordinator
        if server is not None and self._state is not None:
            self.coordinator = server._replace(key=state_key(server.state))
        return self._small()

    def _confirm_heartbeats(self) -> None:
        """Confirm to every reachable agent that its heartbeats arrive now."""
        small = self._small()
        for number, site in enumerate(self.sites):
            if site.agent is not None and site.agent.fence_ms and is_heard(small, number):
                later_ms = self.now_ms - (site.agent.confirmed_ms or self.now_ms)
                self._put(number, agent=replace(site.agent, confirmed_ms=self.now_ms))
                self._put(number, fence_at_ms=(site.fence_at_ms or 0) + later_ms)

    def _journal_ms(self) -> int:
        assert self.coordinator is not None
        return self.now_ms - self.coordinator.began_ms

    def _small(self) -> Small:
        return Small(
            self.now_ms,
            tuple(self.sites),
            tuple(self.streams),
            self.coordinator,
            self.lives,
            self.faults,
        )

    # --- small changes ---

    def _put(self, number: int, **changes: Any) -> None:
        self.sites[number] = self.sites[number]._replace(**changes)

    def _set(self, place: int, **changes: Any) -> None:
        self.streams[place] = self.streams[place]._replace(**changes)

    def _agent(self, number: int) -> AgentState:
        agent = self.sites[number].agent
        assert agent is not None
        return agent

    def _send_up(self, place: int, *messages: Any) -> None:
        if not is_ended(self.streams[place].up):
            self._set(place, up=(*self.streams[place].up, *messages))

    def _send_down(self, place: int, message: Down | Hangup) -> None:
        if not is_ended(self.streams[place].down):
            self._set(place, down=(*self.streams[place].down, message))

    def _tidy(self) -> None:
        """Forget what can no longer matter."""
        server, kept = self.coordinator, []
        for stream in self.streams:
            if not stream.agent_holds:
                stream = stream._replace(down=())
            is_served = server is not None and server.life == stream.life
            if not is_served or (stream.server_done and not self._is_replaced(stream)):
                stream = stream._replace(up=())
            if stream.up or stream.agent_holds:
                kept.append(stream)
        self.streams = sorted(kept, key=lambda one: (one.site, one.session, one.connection))

    def _is_replaced(self, stream: Stream) -> bool:
        """Return whether a newer connection of the session was accepted."""
        assert self.coordinator is not None
        node = self.coordinator.state.nodes.get(stream.session)
        return node is not None and node.connection > stream.connection

    # --- the coordinator ---

    def serve(self) -> None:
        """Start a coordinator without memory."""
        self.lives += 1
        epoch = FIRST_EPOCH + self.now_ms + self.lives
        state = State(coordinator_id(self.lives), epoch, first_epoch=epoch, timing=TIMING)
        state.has_unknown_past = True
        state.window_until_ms = TIMING.window_ms
        state.deadlines.set((DeadlineKind.WINDOW, ""), state.window_until_ms)
        memory = replay((EpochRaised(epoch),))
        self._state = state
        self.coordinator = Coordinator(self.lives, state, memory, 0, self.now_ms)
        self.arena.coordinator = self.coordinator

    def _crash(self) -> None:
        """Kill the coordinator: what it has sent arrives, then a reset."""
        assert self.coordinator is not None
        for place, stream in enumerate(self.streams):
            if stream.life == self.coordinator.life:
                self._send_down(place, Hangup())
        self.coordinator = self.arena.coordinator = self._state = None

    def _arrive_up(self, place: int, message: Any) -> None:
        stream, server = self.streams[place], self.coordinator
        assert server is not None
        if isinstance(message, inputs.Hello):
            self._open(place, message)
        elif not stream.server_holds:
            return
        elif isinstance(message, Hangup):
            if not stream.server_done:
                self._set(place, server_done=True)
                self._note_end(stream)
                self._step(inputs.Broken(inputs.Sender(stream.session, stream.connection, 0)))
        else:
            agent = self.arena.host(stream.site).agent
            view = server_view(server, self._journal_ms(), self.arena)
            self.ghosts.hear("heard", view, agent, message, self.now_ms)
            self._step(message)

    def _note_end(self, stream: Stream) -> None:
        """Note that a stream has ended on the coordinator's side."""
        if self.sites[stream.site].heard == (stream.life, stream.connection):
            self._put(stream.site, ended_ms=self.now_ms)

    def _note_hello(self, stream: Stream) -> None:
        site, heard = self.sites[stream.site], (stream.life, stream.connection)
        if site.session != stream.session or site.heard >= heard:
            return
        was_missed = site.heard[0] == stream.life and is_missed(site, stream.life, self.now_ms)
        self._put(stream.site, heard=heard, ended_ms=None, was_missed=was_missed)

    def _note_seal(self, record: RoundSealed) -> None:
        names = {member.name for member in record.members}
        for number, site in enumerate(self.sites):
            if site.name in names:
                self._put(number, was_missed=False)

    def _open(self, place: int, hello: inputs.Hello) -> None:
        self._set(place, server_holds=True)
        self._note_hello(self.streams[place])
        replaced: list[inputs.Input] = []
        for other, stream in enumerate(self.streams):
            is_older = stream.session == hello.identity.session and other != place
            if is_older and stream.server_holds and not stream.server_done:
                self._send_down(other, Hangup())
                self._set(other, server_done=True)
                sender = inputs.Sender(stream.session, stream.connection, 0)
                replaced.append(inputs.Broken(sender))
        # An agent gets the token of a coordinator together with its id.
        own_id = self._own_state().coordinator_id
        self._step(replace(hello, is_proven=hello.coordinator_id == own_id))
        for input in replaced:
            self._step(input)

    def _expire(self, key: DeadlineKey) -> None:
        """Let a deadline of the coordinator expire."""
        state = self._own_state()
        state.deadlines.set(key, self._journal_ms())
        self._step(inputs.TimePassed())
        while (first := state.deadlines.first()) and first[1][0] is DeadlineKind.ADOPT:
            self._step(inputs.TimePassed())  # in the turn in which the window closes

    def _own_state(self) -> State:
        """Return the coordinator's state, which this move may change."""
        assert self.coordinator is not None
        if self._state is None:
            self._state = copied(self.coordinator.state)
            self.coordinator = self.coordinator._replace(state=self._state)
            self.arena.coordinator = self.coordinator
        return self._state

    def _step(self, input: inputs.Input) -> Refusal | None:
        state = self._own_state()
        assert self.coordinator is not None
        now_ms = self.arena.now_ms = self._journal_ms()
        server = server_view(self.coordinator, now_ms, self.arena)
        self.ghosts.hear("coordinator_hears", server, input)
        turn = Steps(state, now_ms)
        transition = turn.step(input)
        turn.close()
        for key in list(transition.delta.deadlines):
            if key[0] is DeadlineKind.LEASE and state.deadlines.get(key) is not None:
                state.deadlines.set(key, NEVER_MS)
        turn.check(transition)
        if turn.records:
            memory = replay((*snapshot(self.coordinator.memory), *turn.records))
            self.coordinator = self.coordinator._replace(memory=memory)
            self.ghosts.hear("remembered", memory, memory_of(state))
        self.ghosts.hear("coordinator_stepped", server, input, transition)
        for record in transition.records:
            self.notes.append(f"records {record}")
            self.ghosts.hear("recorded", server, record)
            if isinstance(record, RoundSealed):
                self._note_seal(record)
        ended = [end for effect in transition.effects if (end := self._carry_out(effect))]
        for sender in ended:
            self._step(inputs.Broken(sender))
        return transition.refusal

    def _carry_out(self, effect: fx.Effect) -> inputs.Sender | None:  # noqa: C901  # one flat case each
        """Send to the streams; return the sender whose connection ends."""
        if isinstance(effect, fx.JobChanged | fx.BarrierOver | fx.WriteAnswered):
            return None
        place = self._served(effect.session)
        if place is None:
            return None
        stream = self.streams[place]
        if isinstance(effect, fx.Welcome | fx.Refuse) and effect.connection != stream.connection:
            return None
        match effect:
            case fx.Refuse(refusal=refusal):
                return self._hang_up(place, Hangup(refusal_status(refusal).SerializeToString()))
            case fx.Disconnect():
                return self._hang_up(place, Hangup(lost_status().SerializeToString()))
            case fx.Acknowledge(sequence=sequence):
                self._acknowledge(place, sequence)
            case fx.Welcome():
                self._send_down(place, self._down(stream, welcome=effect))
            case fx.Send():
                if not self._rides(place, desired=effect):
                    self._send_down(place, self._down(stream, desired=effect))
            case fx.Notify():
                if not self._rides(place, notify=effect):
                    self._send_down(place, self._down(stream, notify=effect))
            case _:
                assert_never(effect)
        return None

    def _served(self, session: SessionId) -> int | None:
        """Return the stream to a session."""
        assert self.coordinator is not None
        for place, stream in enumerate(self.streams):
            if stream.session == session and stream.life == self.coordinator.life:
                if stream.server_holds and not stream.server_done:
                    return place
        return None

    def _rides(self, place: int, **parts: fx.Send | fx.Notify) -> bool:
        """Add this to a Welcome that was not sent yet; return whether there is one."""
        down = self.streams[place].down
        last = down[-1] if down else None
        if not isinstance(last, Down) or last.welcome is None:
            return False
        if any(getattr(last, name) is not None for name in parts):
            return False
        last = dataclasses.replace(last, **parts)  # type: ignore[arg-type]
        self._set(place, down=(*down[:-1], last))
        return True

    def _down(
        self,
        stream: Stream,
        welcome: fx.Welcome | None = None,
        desired: fx.Send | None = None,
        notify: fx.Notify | None = None,
    ) -> Down:
        assert self.coordinator is not None
        state = self.coordinator.state
        return Down(
            stream.connection,
            state.epoch,
            stream.acknowledged,
            welcome=welcome,
            coordinator_id=state.coordinator_id,
            desired=desired,
            notify=notify,
        )

    def _acknowledge(self, place: int, sequence: int) -> None:
        """Add an acknowledgement to the last message, or to the next heartbeat."""
        self._set(place, acknowledged=max(self.streams[place].acknowledged, sequence))
        stream = self.streams[place]
        last = stream.down[-1] if stream.down else None
        if isinstance(last, Down) and not (last.welcome or last.desired or last.notify):
            self._set(place, down=stream.down[:-1])
        self._send_down(place, self._down(stream))

    def _hang_up(self, place: int, hangup: Hangup) -> inputs.Sender:
        self._send_down(place, hangup)
        self._set(place, server_done=True)
        stream = self.streams[place]
        self._note_end(stream)
        return inputs.Sender(stream.session, stream.connection, 0)
