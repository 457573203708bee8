"""Opens, serves and closes connections of agents: on separate streams, or through a relay.

Who reads and writes is not decided here. So each agent has the same checks, limits, refusals and
acknowledgements, whichever way its messages come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc
from google.rpc.status_pb2 import Status
from msgspec import Struct, field

from rallypoint.base.log import bind_context, get_logger
from rallypoint.server.access.audit import JOB_CHARS_MAX
from rallypoint.server.access.usage.allowances import Beats
from rallypoint.server.access.usage.lines import may_log
from rallypoint.server.access.usage.peers import Peers, Stream
from rallypoint.server.agents.envelopes import Envelopes
from rallypoint.server.agents.hello import UnsupportedProtocol, agree_on_protocol, to_hello
from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.agents.reports import require_sender, to_heartbeat, to_report
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.contract.errors import invalid_status, protocol_status
from rallypoint.server.contract.node import show_session
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.sessions.admission import opens_run
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator, CoordinatorEnded
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.limits import DAY_MS

log = get_logger()

BROKEN_S_MAX = 1.0
"""Longest wait for room in the inbox at the end of a stream, so that a stop cannot hang."""
LARGE_S = 0.005
"""A message that takes more processor time to read is large, such as the exits of 200 workers."""
SMALL_BYTES = 4096
"""A message of no more bytes is never large. The time of most is not measured: a thread that asks
for its processor time loses the processor early where others wait for it."""
REST_RATIO = 9
"""After a large message of an agent, its stream is not read for so many times as long. So one that
sends large messages in a loop takes a tenth of the time in which all others are read."""
REST_S_MAX = 1.0
"""Longest such rest, where a lease is long."""
BYTES_PER_RUN = 4_096
"""A longer Hello counts as so many more runs that it opens: the journal keeps its texts."""
FAREWELL_S_MAX = 5.0
"""Longest wait for the answer to a Hello or a Goodbye after the peer has ended its side."""


class Connection(Struct, eq=False):
    """A connection whose Hello was admitted, and is submitted next."""

    hello: inputs.Hello
    outbox: Outbox
    stream: Stream
    """What its host is charged."""
    is_leaving: bool = False
    """The agent has sent its Goodbye."""
    beats: Beats = field(default_factory=Beats)
    """How many heartbeats it may send now."""

    @property
    def sender(self) -> inputs.Sender:
        """Return who sends on it."""
        return inputs.Sender(self.outbox.session, self.outbox.connection, 0)


class Connections:
    """The connections to the agents of one shard."""

    def __init__(
        self,
        coordinator: Coordinator,
        outboxes: Outboxes,
        state: State,
        envelopes: Envelopes,
        peers: Peers,
    ) -> None:
        """Begin without connections.

        Args:
            coordinator: receives the messages of agents.
            outboxes: hold the messages to agents.
            state: the live state.
            envelopes: makes the messages to agents.
            peers: what each host uses.
        """
        self.coordinator = coordinator
        self.envelopes = envelopes
        self._outboxes = outboxes
        self._state = state
        self._peers = peers

    def open(
        self,
        first: agent_pb2.SessionRequest,
        stream: Stream,
        wake: Callable[[], asyncio.Event] = asyncio.Event,
    ) -> Connection | Status:
        """Return the connection that a Hello opens, or the status to end the stream with.

        The Hello has to be submitted next, and the connection to be closed afterwards.

        Args:
            first: the first message.
            stream: what its host is charged.
            wake: makes the event that is set when there is something to send.

        Raises:
            LimitExceeded: when the Hello is too much for its host.
        """
        try:
            bind_context(
                job_id=first.hello.job_id[:JOB_CHARS_MAX], session_id=show_session(first.session_id)
            )
            hello = to_hello(first, self.clock_ms(), self.envelopes.tokens.is_proof)
        except InvalidMessage as invalid:
            if may_log():
                log.warning("hello_rejected", path=invalid.path, problem=invalid.problem)
            return invalid_status(invalid)
        except UnsupportedProtocol as unsupported:
            return protocol_status(unsupported.lowest, unsupported.highest)
        identity = hello.identity
        is_new = identity.session not in self._state.nodes
        runs = 0.0
        if is_new and self._opens_run(hello):
            runs = max(1.0, first.ByteSize() / BYTES_PER_RUN)
        self._peers.admit(stream, identity.job_id, time.monotonic(), is_new=is_new, runs=runs)
        outbox = self._outboxes.open(
            identity.session,
            hello.connection,
            identity.job_id,
            identity.spec,
            agree_on_protocol(first.hello),
            wake(),
        )
        outbox.hosts = stream.hosts
        return Connection(hello, outbox, stream) if outbox.end is None else outbox.end

    def _opens_run(self, hello: inputs.Hello) -> bool:
        """Return whether a Hello of a new session opens a run that its host has to pay for.

        Not for one that it has brought to a coordinator that has just started without memory.
        """
        draft = Draft(self._state, self.coordinator.now_ms())
        is_adopted = hello.held is not None and draft.awaits_adoption(hello.identity.job_id)
        return not is_adopted and opens_run(draft, hello)

    def clock_ms(self) -> int:
        """Return the Unix time against which epochs are checked.

        A Hello may have raised the coordinator's own epoch to a day ahead. What agents then repeat
        is always plausible.
        """
        return max(time.time_ns() // 1_000_000, self._state.epoch - DAY_MS)

    async def submit(self, connection: Connection) -> None:
        """Submit the Hello.

        Raises:
            CoordinatorEnded: when no turn will come.
        """
        with self.submitting(connection):
            await self.coordinator.submit(connection.hello)

    @contextmanager
    def submitting(self, connection: Connection) -> Iterator[None]:
        """Forget the connection again if its Hello cannot be submitted in the context."""
        try:
            yield
        except BaseException:
            self._outboxes.withdraw(connection.outbox)
            raise

    async def take(self, connection: Connection, envelope: agent_pb2.SessionRequest) -> None:
        """Pass on a message after the Hello. Waits while the inbox is full, after too many
        heartbeats, and after a large message.

        Raises:
            InvalidMessage: when it breaks the contract; the connection has to end.
            CoordinatorEnded: when no turn will come.
        """
        if envelope.HasField("heartbeat"):
            wait_s = connection.beats.delay_s(time.monotonic(), *self._timing_s(connection))
            if wait_s > 0:  # it reads no further: the sender waits, and no other
                await asyncio.sleep(wait_s)
        is_small = envelope.ByteSize() <= SMALL_BYTES
        begun_s = 0.0 if is_small else time.thread_time()
        report = self.note(connection, envelope)
        took_s = 0.0 if is_small else time.thread_time() - begun_s
        if report is not None:
            await self.coordinator.submit(report)
        if took_s > LARGE_S:  # heartbeats wait, too, but not for a lease
            _, lease_s = self._timing_s(connection)
            await asyncio.sleep(min(REST_S_MAX, lease_s / 4, took_s * REST_RATIO))

    def is_excess(self, connection: Connection, envelope: agent_pb2.SessionRequest) -> bool:
        """Return whether this is one heartbeat too many, which need not be heard.

        For who cannot wait, because others' messages come on the same stream.
        """
        if not envelope.HasField("heartbeat"):
            return False
        return not connection.beats.allows(time.monotonic(), *self._timing_s(connection))

    def _timing_s(self, connection: Connection) -> tuple[float, float]:
        """Return the interval of heartbeats, and the lease."""
        outbox = connection.outbox
        interval_ms = outbox.interval_ms or self._state.heartbeat_ms(outbox.spec)
        return interval_ms / 1000, self._state.lease_ms(outbox.spec) / 1000

    def note(
        self, connection: Connection, envelope: agent_pb2.SessionRequest
    ) -> inputs.Input | None:
        """Note a message after the Hello; return what has to be submitted, if anything.

        Raises:
            InvalidMessage: when it breaks the contract; the connection has to end.
            CoordinatorEnded: when no turn will come.
        """
        hello, outbox = connection.hello, connection.outbox
        require_sender(envelope, hello.identity.session, hello.connection)
        report = to_report(envelope, hello.identity.local_world_size, self.clock_ms())
        if report is not None:
            connection.is_leaving = connection.is_leaving or isinstance(report, inputs.Goodbye)
            return report
        # One that comes before the answer to its Hello is older than that answer, which counts.
        counts = self.coordinator.hear(to_heartbeat(envelope)) or not outbox.is_open
        if counts and envelope.epoch <= self._outboxes.epoch:  # else the core ends the stream
            outbox.acknowledge_heartbeat(envelope.heartbeat.number)
        return None

    def close(self, connection: Connection) -> bool:
        """Forget a connection that has ended; return whether the core has to learn of it."""
        outbox = connection.outbox
        self._outboxes.close(outbox)
        if not outbox.was_refused:
            return True
        if outbox.end is not None and outbox.end.code == grpc.StatusCode.UNAVAILABLE.value[0]:
            self._peers.refund(connection.stream)
        return False


class Ended(Struct, frozen=True):
    """A connection that has ended, which the core does not know yet."""

    coordinator: Coordinator
    broken: inputs.Broken


async def note_ends(ended: Sequence[Ended]) -> None:
    """Inform the core that connections have ended; give up on a shard whose inbox stays full."""
    shards = dict[Coordinator, list[inputs.Broken]]()
    for one in ended:
        shards.setdefault(one.coordinator, []).append(one.broken)
    if len(shards) == 1:
        await _submit_ends(*shards.popitem())
        return
    async with asyncio.TaskGroup() as tasks:
        for coordinator, broken in shards.items():
            tasks.create_task(_submit_ends(coordinator, broken))


async def _submit_ends(coordinator: Coordinator, ended: Sequence[inputs.Broken]) -> None:
    told = 0
    try:
        async with asyncio.timeout(BROKEN_S_MAX):
            for broken in ended:
                await coordinator.submit(broken)
                told += 1
    except CoordinatorEnded:
        pass
    except TimeoutError:
        note_dropped(len(ended) - told)


def note_dropped(streams: int) -> None:
    """Log that the core does not learn of the ends of streams."""
    why = "the inbox is full; the lease ends the session"
    if may_log():
        log.warning("stream_end_dropped", why=why, streams=streams)
