"""One process of the coordinator: its real core and outboxes, with the shell's rules around them.

A turn takes what has arrived, steps it, steps what has expired, and writes what that decides. Only
then it carries out effects. After every step the invariants of the job are checked, and after every
turn that a replay of everything journalled so far gives exactly what the state remembers.

A process that loads a journal continues the life of the one before: rules make no difference
between the two. Without a journal every process is another life.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rallypoint.server.access.tokens import ResumeTokens, WorkerTokens
from rallypoint.server.agents.envelopes import Envelopes
from rallypoint.server.agents.hello import to_hello
from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.agents.reports import require_sender, to_heartbeat, to_report
from rallypoint.server.api.barriers.waits import BarrierWaits
from rallypoint.server.api.keys.waits import KeyWaits
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.core.memory.replay import memory_of, replay, snapshot
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import PULSE_S
from rallypoint.server.shell.listeners import Listeners
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.limits import DAY_MS
from rallypoint.wire.mapping import numbers_of
from sim.durable.disk import SECRET
from sim.durable.recovery import Past
from sim.durable.writes import Writes
from sim.keys.served import KeyCalls
from sim.meetings.served import Calls
from sim.rules.rules import Violation
from sim.small.small import copied
from sim.world.clock import Timer
from sim.world.contacts import Contacts, reattach_ms
from sim.world.network import Stream
from sim.world.turns import Steps
from sim.world.wire import TERMS, Hangup
from support.core.decisions import RoundSealed

if TYPE_CHECKING:
    from sim.world.world import World

TURN_MS_MAX = 2
"""Longest wait of an input for a turn."""
PULSE_MS = int(PULSE_S * 1000)
"""Longest time without a turn while there are nodes."""
_WAITS = {
    number: kind for kind, number in numbers_of(WaitKind, job_pb2.WaitKind.DESCRIPTOR).items()
}


class Server:
    """A coordinator that serves until it is killed."""

    def __init__(self, world: World, boot: int, past: Past, clock_back_ms: int = 0) -> None:
        self.world = world
        self.boot = boot
        """The number of the process."""
        self.life = past.life
        self.state, self.memory = past.state, past.memory
        self.is_durable = past.state.durable
        timing = past.state.timing
        self.outboxes = Outboxes()
        self.barriers, self.keys = BarrierWaits(), KeyWaits()
        self.listeners = Listeners(past.state, self.outboxes, self.barriers, self.keys)
        secret = SECRET if self.is_durable else None
        self.tokens = tokens = WorkerTokens(self.state.coordinator_id, secret)
        self.envelopes = Envelopes(self.outboxes, self.state, tokens, ResumeTokens(secret))
        self.calls = Calls(self, tokens)
        self.key_calls = KeyCalls(self, tokens)
        self.contacts = past.contacts or Contacts(timing)
        self.is_dead = False
        self.died_ms: int | None = None
        """Journal time when it was killed."""
        self.stalled_until_ms = 0
        self.writes = self._new_writes()
        self._past = past
        self._origin_ms = past.origin_ms - world.clock.now_ms
        self._clock_back_ms = clock_back_ms
        self._held_back_ms = 0
        self.kept_ms = past.origin_ms
        """Journal time of the latest batch."""
        self._inbox: list[inputs.Input] = []
        self._heard: dict[SessionId, inputs.Heartbeat] = {}
        """Heartbeats since the last turn; they cause no turn."""
        self._newest: dict[SessionId, int] = {}
        self._streams: dict[int, Stream] = {}
        """Streams that are open on this side, by the identity of their outbox."""
        self._last_report: dict[SessionId, inputs.Report] = {}
        self._turn: Timer | None = None
        self._turn_at_ms = 0
        self._schedule(0 if past.contacts else timing.window_ms)

    def _new_writes(self) -> Writes:
        return Writes(self)

    def now_ms(self) -> int:
        """Return journal time, which stands when the process has died."""
        if self.died_ms is not None:
            return self.died_ms
        return self.world.clock.now_ms + self._origin_ms - self._held_back_ms

    def settled_ms(self, spec: JobSpec) -> int:
        """Return the journal time at which every agent of a job has returned that wants to."""
        timing = self.state.timing
        back_ms = timing.window_ms
        if self._past.contacts is not None:
            back_ms = self._past.origin_ms + reattach_ms(timing, timing.compute_lease_ms(spec, 0))
        return max(back_ms, self.state.listens_until_ms)  # a first window may begin again

    def unix_ms(self) -> int:
        """Return the wall clock of its host."""
        return self.world.unix_ms() - self._clock_back_ms

    def is_missed(self, session: SessionId) -> bool:
        """Return whether it may have lost an agent, by what its host has heard of the agent."""
        return self.contacts.is_missed(session, self.now_ms())

    def awaits_return(self, session: SessionId) -> bool:
        """Return whether the stream of an agent has ended so recently that it may return."""
        return self.contacts.awaits_return(session, self.now_ms())

    @property
    def lateness_ms(self) -> int:
        """How long it was suspended in all, as far as it matters to those who wait."""
        return self._held_back_ms + self.stalled_until_ms + self.writes.slow_ms

    @property
    def busy_until_ms(self) -> int:
        """Until when it takes no turn."""
        return max(self.stalled_until_ms, self.writes.until_ms)

    def stall(self, duration_ms: int, noticed_ms: int) -> None:
        """Suspend the process; afterwards it notices for how long, roughly."""
        self.stalled_until_ms = self.world.clock.now_ms + duration_ms
        self.world.clock.at(self.stalled_until_ms, partial(self._resume, noticed_ms))

    def _resume(self, noticed_ms: int) -> None:
        self.hold_back(noticed_ms)
        self._schedule(0)

    def hold_back(self, noticed_ms: int) -> None:
        """Hold journal time back by this time, and let the core know; 0: nothing was noticed.

        A stall while the journal is written counts once: time is never before the latest batch.
        """
        noticed_ms = max(0, min(noticed_ms, self.now_ms() - self.kept_ms))
        self._held_back_ms += noticed_ms
        self.contacts.held_back(self.now_ms())
        if noticed_ms:
            self._inbox.insert(0, inputs.Stalled(noticed_ms))

    def receive(self, stream: Stream, message: bytes | Hangup, sent_ms: int) -> None:
        """Handle a message that was sent on a stream at this time."""
        if isinstance(message, bytes):
            self._hear(stream, agent_pb2.SessionRequest.FromString(message), sent_ms)
        elif stream.outbox is not None:  # else it ended before its Hello arrived
            self.contacts.ended(stream.outbox.session, stream.connection, self.now_ms())
            stream.outbox.ended = True
            stream.outbox.wake.set()
            self._flush_soon(stream)

    def _hear(self, stream: Stream, envelope: agent_pb2.SessionRequest, sent_ms: int) -> None:
        """Convert a message as `AgentService` does; what is invalid there breaks a rule here."""
        clock_ms = max(self.world.unix_ms(), self.state.epoch - DAY_MS)
        input: inputs.Hello | inputs.Report | inputs.Heartbeat | None
        try:
            if stream.hello is None:
                input = stream.hello = to_hello(envelope, clock_ms, self.envelopes.tokens.is_proof)
            else:
                identity = stream.hello.identity
                require_sender(envelope, identity.session, stream.hello.connection)
                input = to_report(envelope, identity.local_world_size, clock_ms)
        except InvalidMessage as invalid:
            raise Violation("Contract", f"{stream.agent.host.name}: {invalid}") from invalid
        input = input or to_heartbeat(envelope)
        self.world.safety.heard(self, stream.agent, input, sent_ms)
        self.contacts.heard(input, self.now_ms())
        self._accept(stream, input)

    def _accept(
        self, stream: Stream, input: inputs.Hello | inputs.Report | inputs.Heartbeat
    ) -> None:
        if isinstance(input, inputs.Hello):
            self._open(stream, input)
        elif stream.server_done:
            # Nothing follows the end of the newest connection; old messages of older ones may.
            if self._newest[stream.agent.session] > stream.connection:
                self._submit(input)
        elif isinstance(input, inputs.Heartbeat):
            self._beat(stream, input)
        else:
            self._submit(input)

    def _beat(self, stream: Stream, beat: inputs.Heartbeat) -> None:
        """Note a heartbeat, and acknowledge it if it counts, as `Connections.note` does."""
        if not self.state.is_current(beat.sender.session, beat.sender.connection):
            return
        self._heard[beat.sender.session] = beat
        assert stream.outbox is not None
        if beat.sender.epoch <= self.outboxes.epoch:  # if newer, the core ends the stream
            stream.outbox.acknowledge_heartbeat(beat.number)
            self._flush_soon(stream)

    def _open(self, stream: Stream, hello: inputs.Hello) -> None:
        session = hello.identity.session
        identity = hello.identity
        stream.outbox = self.outboxes.open(
            session, hello.connection, identity.job_id, identity.spec, TERMS
        )
        self._streams[id(stream.outbox)] = stream
        self._newest[session] = max(self._newest.get(session, 0), hello.connection)
        self._submit(hello)
        old = self._last_report.get(session)
        if old is not None and self.world.happens(self.world.faults.repeat_percent):
            delay_ms = self.world.rng.randint(0, 3_000)
            self.world.clock.after(delay_ms, partial(self._repeat, old))
        self._flush_all()

    def _repeat(self, old: inputs.Report) -> None:
        """Let a message of a connection that was replaced arrive once more."""
        if not self.is_dead and self._newest[old.sender.session] > old.sender.connection:
            self._submit(old)

    def request(self, input: inputs.Request | inputs.Examined) -> None:
        """Handle a request of an operator, or evidence."""
        self._submit(input)

    def submit_call(self, input: inputs.Arrive | inputs.WriteKeys, delay_ms: int = 0) -> None:
        """Handle the call of a worker in a turn, after this delay at the latest."""
        self._inbox.append(input)
        self._schedule(delay_ms)

    def look_soon(self, delay_ms: int = 0) -> None:
        """Take a turn for those who read, after this delay at the latest."""
        self._schedule(delay_ms)

    def _submit(self, input: inputs.Input) -> None:
        if isinstance(input, inputs.Report):
            self._last_report[input.sender.session] = input
        self._inbox.append(input)
        self._schedule(self.world.rng.randint(0, TURN_MS_MAX))

    # --- turns ---

    def _schedule(self, delay_ms: int) -> None:
        """Schedule a turn, unless an earlier one is scheduled."""
        at_ms = max(self.world.clock.now_ms + delay_ms, self.busy_until_ms)
        if self._turn is not None and not self._turn.cancelled and self._turn_at_ms <= at_ms:
            return
        if self._turn is not None:
            self._turn.cancel()
        self._turn_at_ms = at_ms
        self._turn = self.world.clock.at(at_ms, self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        if self.is_dead:
            return
        if self.busy_until_ms > self.world.clock.now_ms or self.writes.is_waiting:
            self._schedule(0)
            return
        now_ms, arrived = self.now_ms(), self._arrived()
        if self.writes.loses and (turn := self._foresee(arrived, now_ms)).records:
            self.writes.lose(turn)
            return
        self.take_inbox()
        turn = self._begin_turn(self.state, now_ms)
        for input in arrived:
            self._step(input, turn)
        while (due_ms := self.state.next_deadline_ms()) is not None and due_ms <= now_ms:
            self._step(inputs.TimePassed(), turn)
        self._close(turn)
        if turn.records and self.is_durable:
            self.kept_ms = now_ms
            self.writes.write(turn)
        else:
            self.show(turn)

    def _arrived(self) -> Sequence[inputs.Input]:
        return *self._heard.values(), *self._inbox

    def take_inbox(self) -> None:
        """Take everything that has arrived."""
        self._heard, self._inbox = {}, []

    def take_again(self, foreseen: Steps) -> Steps:
        """Take a turn that was foreseen, with the same inputs at the same time."""
        turn = Steps(self.state, foreseen.now_ms)
        turn.measure(foreseen.unix_ms, keeps_time=foreseen.keeps_time)
        for input, _ in foreseen.stepped:
            self._step(input, turn)
        self._close(turn)
        self.kept_ms = turn.now_ms
        return turn

    def _begin_turn(self, state: State, now_ms: int) -> Steps:
        turn = Steps(state, now_ms)
        if self.is_durable:
            keep_ms = state.keep_time_ms()
            is_due = keep_ms is not None and now_ms - self.kept_ms >= keep_ms
            turn.measure(self.unix_ms(), keeps_time=is_due)
        return turn

    def _foresee(self, arrived: Sequence[inputs.Input], now_ms: int) -> Steps:
        """Return what a turn would decide, without taking it: no rule hears of it."""
        state = copied(self.state)
        turn = self._begin_turn(state, now_ms)
        for input in arrived:
            turn.step(input)
        while (due_ms := state.next_deadline_ms()) is not None and due_ms <= now_ms:
            turn.step(inputs.TimePassed())
        turn.close()
        return turn

    def show(self, turn: Steps) -> None:
        """Carry out what a turn has decided, and answer everyone."""
        state = turn.state
        self.listeners.carry_out(turn.effects, turn.changed, state)
        for input, refusal in turn.stepped:
            self.world.operators.stepped(input, refusal)
            if isinstance(input, inputs.Hello) and refusal is None:
                self.contacts.returned(input.identity.session)
        self.calls.finish_turn()
        self.key_calls.finish_turn()
        self.world.progress.standing.examine(self)
        self._flush_all()
        due_ms = state.next_deadline_ms()
        if due_ms is not None:
            self._schedule(max(0, due_ms - self.now_ms()))
        if self._inbox:
            self._schedule(0)
        if state.nodes:
            self._schedule(PULSE_MS)
        elif self.is_durable and (keep_ms := state.keep_time_ms()) is not None:
            self._schedule(max(0, self.kept_ms + keep_ms - self.now_ms()))

    def _step(self, input: inputs.Input, turn: Steps) -> None:
        world, state = self.world, self.state
        before = {job_id: job.phase for job_id, job in state.jobs.items()}
        world.safety.coordinator_hears(self, input)
        transition = turn.step(input)
        world.steps += 1
        self.calls.stepped(input, transition.refusal)
        self.key_calls.stepped(input, transition.refusal)
        turn.check(transition)
        world.coverage.coordinator_stepped(before, input, transition, state)
        world.safety.coordinator_stepped(self, input, transition)
        for record in transition.records:
            world.note("record", record)
            world.safety.recorded(self, record)
            if isinstance(record, RoundSealed):
                names = [member.name for member in record.members]
                self.contacts.sealed(state.index[(record.job_id, name)] for name in names)

    def _close(self, turn: Steps) -> None:
        """Note what the records of a turn do not say, and check that nothing is missing."""
        turn.close()
        if turn.records or self.world.steps % 64 == 0:
            self.memory = replay((*snapshot(self.memory), *turn.records))
            self.world.safety.remembered(self.memory, memory_of(self.state))

    # --- messages to the streams ---

    def _flush_all(self) -> None:
        for stream in list(self._streams.values()):
            if stream.outbox is not None and stream.outbox.wake.is_set():
                self._flush_soon(stream)

    def _flush_soon(self, stream: Stream) -> None:
        if not stream.is_writing:
            stream.is_writing = True
            delay_ms = self.world.rng.randint(0, self.world.faults.writer_ms_max)
            self.world.clock.after(delay_ms, partial(self._write, stream))

    def _write(self, stream: Stream) -> None:
        stream.is_writing = False
        outbox = stream.outbox
        if self.is_dead or outbox is None or stream.server_done:
            return
        if self.stalled_until_ms > self.world.clock.now_ms:
            stream.is_writing = True
            self.world.clock.at(self.stalled_until_ms, partial(self._write, stream))
            return
        outbox.wake.clear()
        for message in self._take(outbox):
            self._send(stream, message.SerializeToString())
        if outbox.end is not None or outbox.ended or outbox.has_left:
            self._finish(stream, outbox)

    def _send(self, stream: Stream, message: bytes) -> None:
        self.world.network.send_down(stream, message)

    def _take(self, outbox: Outbox) -> list[agent_pb2.SessionResponse]:
        """Empty an outbox into messages, in the order of `AgentService`."""
        messages = self.envelopes.take(outbox)
        if outbox.end is not None:
            return messages
        if outbox.has_left:
            messages.append(self.envelopes.acknowledge(outbox))
        elif outbox.heartbeat > outbox.answered:
            waiting = None
            if not outbox.runs_workers:
                waiting = self.envelopes.explain(outbox.session, self.now_ms())
            if waiting is not None and waiting.kind in _WAITS:
                self.world.coverage.waited(_WAITS[waiting.kind])
            messages.append(self.envelopes.answer(outbox, waiting))
        return messages

    def _finish(self, stream: Stream, outbox: Outbox) -> None:
        """Close a stream, and send the peer the reason if it still listens."""
        stream.server_done = True
        self.contacts.ended(outbox.session, outbox.connection, self.now_ms())
        del self._streams[id(outbox)]
        if not outbox.ended:
            end = outbox.end
            hangup = Hangup(is_orderly=True) if end is None else Hangup(end.SerializeToString())
            self.world.network.send_down(stream, hangup)
        self.outboxes.close(outbox)
        self._submit(inputs.Broken(inputs.Sender(outbox.session, outbox.connection, 0)))
