"""Simulated agents: real gRPC streams that speak the protocol, without processes behind them.

As real ones do, they connect again when their stream breaks, say which round they hold, and repeat
what the coordinator has not acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from harness.trial import MeasurementFailed
from rallypoint.agent.session.endings import BrokenStream, read_ending
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.wire.channel import client_options
from rallypoint.wire.durations import to_duration, to_ms

METHOD = "/rallypoint.v1.AgentService/Session"
FIRST_BEAT_S_MAX = 1.0
"""Longest time from the Welcome to the first heartbeat."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 2.0
"""Bounds of the pause before another connection, as for real agents."""
OUTAGE_S_MAX = 120.0
"""An agent that has been without a Welcome for so long has failed."""
STREAMS_PER_CHANNEL = 256
"""Agents of `running_job` that share a connection, so that 16,384 fit into one process."""
LONG_LEASE_MS = 1_800_000
"""Thousands of agents in one process cannot keep a short lease."""
LARGE_LIMIT_S = 300.0
"""Longest wait for the next step of so many."""
_BREAKS = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)
"""What reads and writes raise when the stream has ended."""

KILLED = node_pb2.WorkerExit(signal=9, run_time=to_duration(1_000))
"""The end of a worker that was killed."""


def show_break(number: int, why: str) -> None:
    """Print that the stream of an agent has broken: a measurement may be void then."""
    print(f"agent {number}: stream ended: {why}", file=sys.stderr, flush=True)


class Gathering:
    """Waits until the same thing has happened to all of them, again and again."""

    def __init__(self, nodes: int, what: str = "have a round", limit_s: float = 120.0) -> None:
        self._nodes, self._what, self._limit_s = nodes, what, limit_s
        self._count = 0
        self._done = asyncio.Event()

    def one(self) -> None:
        """Note that it has happened to one."""
        self._count += 1
        if self._count == self._nodes:
            self._done.set()

    async def all(self) -> None:
        """Return when it has happened to the last one, and begin again.

        Raises:
            MeasurementFailed: some are missing after the limit.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                await self._done.wait()
        except TimeoutError:
            text = f"{self._count} of {self._nodes} {self._what}"
            raise MeasurementFailed(text) from None
        self._count = 0
        self._done.clear()


@dataclass(slots=True)
class SimulatedAgent:
    """An agent that does at once what the coordinator wants."""

    number: int
    nodes: int
    on_run: Callable[[], None]
    """Called when a Run has arrived."""
    on_welcome: Callable[[], None] = lambda: None
    """Called when a Welcome has arrived."""
    on_break: Callable[[int, str], None] = show_break
    """Called with the agent's number, and why, when its stream has broken."""
    workers: int = 1
    """Workers that it pretends to start."""
    job_id: str = "rounds"
    restarts: int = 1_000
    """Restarts that its job allows."""
    lease_ms: int = 0
    """The lease that its job requests; 0: none."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Of its stream: its token, if it needs one."""
    session_id: str = field(default_factory=lambda: secrets.token_hex(16))
    connection: int = 0
    sequence: int = 0
    acknowledged: int = 0
    reports: list[agent_pb2.SessionRequest] = field(default_factory=list)
    """Those that were not acknowledged, oldest first."""
    welcome: agent_pb2.Welcome = field(default_factory=agent_pb2.Welcome)
    """The last one."""
    held: agent_pb2.RunOrder | None = None
    """The round that runs here."""
    has_finished: bool = False
    """Its job has ended."""
    revision: int = 0
    epoch: int = 0
    round: int = 0
    port: int = 10_000
    interval_s: float = 1.0
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    call: Any = None
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A stream allows one write at a time."""

    def hello(self) -> agent_pb2.SessionRequest:
        """Return the first message."""
        spec = job_pb2.JobSpec(
            min_nodes=self.nodes,
            max_nodes=self.nodes,
            max_restarts=self.restarts,
            shutdown_timeout=to_duration(10_000),
            restart_backoff=to_duration(0),
        )
        if self.lease_ms:
            spec.lease.CopyFrom(to_duration(self.lease_ms))
        hello = agent_pb2.Hello(
            protocol_version=1,
            job_id=self.job_id,
            spec=spec,
            node_name=f"node{self.number}",
            node_name_explicit=True,
            address="127.0.0.1",
            local_world_size=self.workers,
            role="default",
            run=self.welcome.run,
            coordinator_id=self.welcome.coordinator_id,
            coordinator_durable=self.welcome.coordinator_durable,
            resume_token=self.welcome.resume_token,
            reports_acknowledged=self.acknowledged,
            revision_applied=self.revision,
        )
        if self.held is None:
            hello.ready.CopyFrom(agent_pb2.Ready(round=self.round, master_port=self.port))
        else:
            running = [
                node_pb2.Worker(local_rank=rank, pid=1, state=node_pb2.WORKER_STATE_RUNNING)
                for rank in range(self.workers)
            ]
            state = node_pb2.NODE_STATE_STARTED
            held = agent_pb2.HeldRound(order=self.held, state=state, workers=running)
            hello.held.CopyFrom(held)
        return agent_pb2.SessionRequest(hello=hello)

    async def live(self, channel: grpc.aio.Channel) -> None:
        """Take part until cancelled or the job has ended; connect again when the stream breaks.

        Raises:
            Exception: what `read_ending` returns, when another connection would not help.
            BrokenStream: there was no Welcome for OUTAGE_S_MAX.
        """
        backoff_s, well_s = BACKOFF_S_MIN, time.monotonic()
        while True:
            self.welcomed.clear()
            end = await self._converse(channel)
            if self.has_finished:
                return
            if not isinstance(end, BrokenStream):
                raise end
            if self.welcomed.is_set():
                backoff_s, well_s = BACKOFF_S_MIN, time.monotonic()
            elif time.monotonic() - well_s > OUTAGE_S_MAX:
                raise end
            self.on_break(self.number, str(end))
            await asyncio.sleep(max(end.retry_s, random.uniform(backoff_s / 2, backoff_s)))
            backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)

    async def _converse(self, channel: grpc.aio.Channel) -> Exception:
        """Take part on one stream; return what its end means for an agent."""
        session = channel.stream_stream(
            METHOD,
            request_serializer=agent_pb2.SessionRequest.SerializeToString,
            response_deserializer=agent_pb2.SessionResponse.FromString,
        )
        self.connection += 1
        call: Any = session(metadata=self.metadata)
        self.call = call
        await self.say(self.hello(), numbered=False)
        async with asyncio.TaskGroup() as tasks:
            beats = tasks.create_task(self._beat())
            with suppress(*_BREAKS):  # the status says why
                while (message := await call.read()) is not grpc.aio.EOF:
                    self.epoch = message.epoch
                    self._forget(message.acknowledged)
                    await self._take(message)
            beats.cancel()
        code, text = await call.code(), await call.details()
        return read_ending(code, f"{code.name}: {text}", await call.trailing_metadata())

    def _forget(self, acknowledged: int) -> None:
        """Forget the reports that the coordinator has."""
        self.acknowledged = max(self.acknowledged, acknowledged)
        self.reports = [one for one in self.reports if one.sequence > self.acknowledged]

    async def _take(self, message: agent_pb2.SessionResponse) -> None:
        if message.HasField("desired"):
            desired = message.desired
        elif message.HasField("welcome"):
            self.interval_s = to_ms(message.welcome.heartbeat_interval) / 1000
            desired, self.welcome = message.welcome.desired, message.welcome
            self.welcomed.set()
            self.on_welcome()
            for report in tuple(self.reports):
                await self._write(report)
        elif message.acknowledgement.HasField("heartbeat_interval"):
            self.interval_s = to_ms(message.acknowledgement.heartbeat_interval) / 1000
            return
        else:
            return
        self.revision = max(self.revision, desired.revision)
        if desired.HasField("run") and desired.run.header.number > self.round:
            self.round, self.held = desired.run.header.number, desired.run
            self.on_run()
            started = agent_pb2.Started(round=self.round, pids=[1] * self.workers)
            await self.say(agent_pb2.SessionRequest(started=started))
        elif desired.HasField("stop"):
            self.port, self.held = self.port + 1, None
            ready = agent_pb2.Ready(round=desired.stop.round, master_port=self.port)
            await self.say(agent_pb2.SessionRequest(ready=ready))
        elif desired.HasField("finished"):
            self.has_finished = True
            await self.say(agent_pb2.SessionRequest(goodbye=agent_pb2.Goodbye(text="done")))

    async def fail(self, exit: node_pb2.WorkerExit = KILLED) -> None:
        """Report that the node's first worker has ended like this."""
        worker = node_pb2.Worker(local_rank=0, pid=1, exit=exit)
        exited = agent_pb2.Exited(round=self.round, workers=[worker])
        await self.say(agent_pb2.SessionRequest(exited=exited))

    async def say(self, message: agent_pb2.SessionRequest, *, numbered: bool = True) -> None:
        """Send a message in its envelope; a report is sent again until it is acknowledged."""
        if numbered:
            self.sequence += 1
            message.sequence = self.sequence
            self.reports.append(message)
        await self._write(message)

    async def _write(self, message: agent_pb2.SessionRequest) -> None:
        async with self.writing:
            message.session_id = self.session_id
            message.connection = self.connection
            message.epoch = self.epoch
            with suppress(*_BREAKS):  # who reads learns why
                await self.call.write(message)

    async def _beat(self) -> None:
        await self.welcomed.wait()
        number, pause_s = 0, min(self.interval_s, FIRST_BEAT_S_MAX)
        while True:
            await asyncio.sleep(pause_s)
            number += 1
            beat = agent_pb2.Heartbeat(number=number)
            await self.say(agent_pb2.SessionRequest(heartbeat=beat), numbered=False)
            pause_s = self.interval_s


def open_channel(target: str, *options: tuple[str, int]) -> grpc.aio.Channel:
    """Return a channel with a separate connection."""
    return grpc.aio.insecure_channel(target, options=[*client_options(), *options])


@asynccontextmanager
async def living(
    agents: Sequence[SimulatedAgent], channels: Sequence[grpc.aio.Channel]
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Let agents live while the context is open; they share the channels in turn."""
    async with asyncio.TaskGroup() as lives:
        pairs = zip(agents, itertools.cycle(channels), strict=False)
        tasks = [lives.create_task(agent.live(channel)) for agent, channel in pairs]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def running_job(
    target: str, nodes: int, *, workers: int = 1, **more: Any
) -> AsyncIterator[None]:
    """Let a job of so many nodes run while the context is open, all in this process.

    Args:
        target: of the coordinator.
        nodes: of the job, each a simulated agent.
        workers: of each node.
        more: fields of every agent.
    """
    gathering = Gathering(nodes, limit_s=LARGE_LIMIT_S)
    async with AsyncExitStack() as stack:
        for begin in range(0, nodes, STREAMS_PER_CHANNEL):
            channel = open_channel(target)
            await channel.channel_ready()
            numbers = range(begin, min(begin + STREAMS_PER_CHANNEL, nodes))
            welcomed = Gathering(len(numbers), "are welcome", LARGE_LIMIT_S)
            agents = [
                SimulatedAgent(
                    *(number, nodes, gathering.one),
                    on_welcome=welcomed.one,
                    workers=workers,
                    lease_ms=LONG_LEASE_MS,
                    **more,
                )
                for number in numbers
            ]
            await stack.enter_async_context(living(agents, [channel]))
            await welcomed.all()
        await gathering.all()
        yield
