"""A client that sends the worst it can, as a process: python attacks.py NAME TARGET SECONDS.

The tokens come in the environment. It prints "ready" when all is prepared, begins with the first
line of its input, and then prints how many calls it has made and how many of them were refused.
`crowd` is no attack: it is a job of 4,096 nodes, which stays until its input ends.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # started as a script, it sees only its folder

from harness.swarm import METHOD, Gathering, SimulatedAgent, running_job
from harness.swarm import open_channel as open_separate
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import node_pb2, scope_pb2
from rallypoint.wire.credentials import TOKEN_KEY, WORKER_TOKEN_KEY

CROWD = 4_096
"""Nodes of the large job."""
CALLS_AT_ONCE = 16
CALLS_PER_CONNECTION = 50
"""Of those that are never read: gRPC lets a connection have 100 calls."""
JOB = "attack"
LARGE_BYTES = 3_900_000
"""Of a message that gRPC still takes."""
EMPTY_WRITES = 600_000
"""Of a request of keys that is still decoded."""
WORKERS = 4_050
STEP_S = 120.0


class Attack:
    """One client: it counts its calls until its time is over."""

    def __init__(self, target: str, seconds: float) -> None:
        """Open a connection."""
        self.channel = open_channel(target)
        self.target, self.seconds = target, seconds
        self.calls = 0
        self.codes: Counter[str] = Counter()
        self.fresh = itertools.count()
        self.metadata: tuple[tuple[str, str], ...] = ()
        self.tasks: list[asyncio.Task[None]] = []
        self.stack = AsyncExitStack()
        """Never closed: the process ends."""

    async def call(self, path: str, request: bytes) -> None:
        """Make a call of one request, and read its answer."""
        self.calls += 1
        make: Any = self.channel.unary_unary(path)
        call = make(request, metadata=self.metadata, timeout=STEP_S)
        self.codes[(await call.code()).name] += 1

    async def flood(self, requests: Iterator[tuple[str, bytes]]) -> None:
        """Make calls, many at once, until the time is over."""
        await self.repeat(lambda: self.call(*next(requests)))

    async def repeat(
        self, once: Callable[[], Awaitable[None]], at_once: int = CALLS_AT_ONCE
    ) -> None:
        """Do something again and again, many at once, until the time is over."""
        ends_s = time.monotonic() + self.seconds

        async def many() -> None:
            while time.monotonic() < ends_s:
                await once()

        await asyncio.gather(*(many() for _ in range(at_once)))

    async def hello(self, hello: agent_pb2.SessionRequest) -> None:
        """Open a stream, and read until it is refused."""
        self.calls += 1
        call: Any = self.channel.stream_stream(METHOD)(metadata=self.metadata, timeout=STEP_S)
        try:
            await call.write(hello.SerializeToString())
            while await call.read() is not grpc.aio.EOF:
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # it was refused before it was written
        self.codes[(await call.code()).name] += 1

    async def join(self, workers: int = 1) -> SimulatedAgent:
        """Join a job as a node, and wait for its Run."""
        runs = Gathering(1)
        agent = SimulatedAgent(0, 1, runs.one, workers=workers, job_id=JOB)
        agent.metadata = self.metadata
        self.tasks.append(asyncio.create_task(agent.live(self.channel)))  # noqa: TID251
        await runs.all()
        return agent


NO_ROOM = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1_024))
"""Options of a client that takes nothing before it reads. gRPC's own would take all."""


def open_channel(target: str, *more: tuple[str, int]) -> grpc.aio.Channel:
    """Return a channel that takes messages of any length."""
    return open_separate(target, ("grpc.max_receive_message_length", -1), *more)


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a caller with a token."""
    return ((TOKEN_KEY, f"Bearer {os.environ[name]}"),)


Begin = Callable[[], Awaitable[None]]
"""The attack itself, when all is prepared."""
HEALTH = "/grpc.health.v1.Health/Check"
GET_JOB = "/rallypoint.v1.JobService/GetJob"
WRITE_KEYS = "/rallypoint.v1.KeyValueService/WriteKeys"
ARRIVE = "/rallypoint.v1.BarrierService/Arrive"


def with_text(size: int) -> bytes:
    """Return a request whose first field is a text of so many characters."""
    return jobs_pb2.GetJobRequest(job_id="x" * size).SerializeToString()


async def large_without_token(attack: Attack) -> Begin:
    """Refused before they are decoded."""
    calls = [(HEALTH, with_text(LARGE_BYTES)), (GET_JOB, with_text(LARGE_BYTES))]
    return lambda: attack.flood(itertools.cycle(calls))


async def small_without_token(attack: Attack) -> Begin:
    """As many as one process can send."""
    return lambda: attack.flood(itertools.repeat((GET_JOB, with_text(9))))


async def wrong_tokens(attack: Attack) -> Begin:
    """Another one in each call."""

    async def once() -> None:
        attack.metadata = ((TOKEN_KEY, f"Bearer rp_{secrets.token_urlsafe(32)}"),)
        await attack.call(GET_JOB, with_text(9))

    return lambda: attack.repeat(once)


async def large_names(attack: Attack) -> Begin:
    """Names of jobs of the most bytes that are decoded, and longer ones, each another one."""
    attack.metadata = bearer("VIEWER")
    sizes = itertools.cycle((65_000, 3_000_000, 255))
    return lambda: attack.flood((GET_JOB, with_text(size)) for size in sizes)


async def read_crowd(attack: Attack) -> Begin:
    """400 calls at once about the large job."""
    attack.metadata = bearer("VIEWER")
    request = jobs_pb2.GetJobRequest(job_id="crowd").SerializeToString()
    return lambda: attack.repeat(lambda: attack.call(GET_JOB, request), 400)


async def never_read_crowd(attack: Attack) -> Begin:
    """400 calls at once about the large job, and no answer is read."""
    metadata = bearer("VIEWER")
    request = jobs_pb2.GetJobRequest(job_id="crowd").SerializeToString()
    calls: list[Any] = []

    async def once() -> None:
        ends_s = time.monotonic() + attack.seconds
        for _ in range(400 // CALLS_PER_CONNECTION):
            channel = open_channel(attack.target, *NO_ROOM)
            for _ in range(CALLS_PER_CONNECTION):
                attack.calls += 1
                make: Any = channel.stream_stream(GET_JOB)
                calls.append(make(metadata=metadata))
                await calls[-1].write(request)
        await asyncio.sleep(ends_s - time.monotonic())
        for call in calls:
            attack.codes[(await call.code()).name if call.done() else "open"] += 1

    return once


async def empty_writes(attack: Attack) -> Begin:
    """A small message that inflates."""
    agent = await as_worker(attack)
    request = keys_pb2.WriteKeysRequest(job_id=agent.job_id).SerializeToString()
    field = keys_pb2.WriteKeysRequest.DESCRIPTOR.fields_by_name["writes"].number
    request += bytes([field << 3 | 2, 0]) * EMPTY_WRITES
    return lambda: attack.flood(itertools.repeat((WRITE_KEYS, request)))


async def write_keys(attack: Attack, *, is_fresh: bool) -> Begin:
    """Each call writes 16 keys of 60 KB each: always the same, or each time fresh ones."""
    agent = await as_worker(attack)

    def write() -> tuple[str, bytes]:
        request = keys_pb2.WriteKeysRequest(job_id=agent.job_id, scope=scope_pb2.SCOPE_RUN)
        for number in range(16):
            key = next(attack.fresh) if is_fresh else number
            put = request.writes.add(key=f"{key}".rjust(200, "k")).put
            put.value = secrets.token_bytes(60_000)
        request.request_id = secrets.token_hex(16)
        return WRITE_KEYS, request.SerializeToString()

    return lambda: attack.flood(iter(write, None))


async def fresh_barriers(attack: Attack) -> Begin:
    """Each call opens another barrier of 1,024 names of 253 bytes, and waits there for a second."""
    agent = await as_worker(attack)
    names = [f"{number}".rjust(253, "n") for number in range(1_024)]

    def arrive() -> tuple[str, bytes]:
        request = barrier_pb2.ArriveRequest(job_id=agent.job_id, scope=scope_pb2.SCOPE_RUN)
        request.name = f"{next(attack.fresh)}".rjust(250, "b")
        request.participant.name = names[0]
        request.expected.participants.names.extend(names)
        request.payload = secrets.token_bytes(16_000)
        request.timeout.seconds = 1
        return ARRIVE, request.SerializeToString()

    return lambda: attack.repeat(lambda: attack.call(*arrive()), 400)


async def as_worker(attack: Attack) -> SimulatedAgent:
    """Let the attacker have nothing but the token of a worker."""
    attack.metadata = bearer("AGENT")
    agent = await attack.join()
    assert agent.held is not None
    attack.metadata = ((WORKER_TOKEN_KEY, agent.held.worker_token),)
    return agent


def new_hello(job_id: str, number: int = 0) -> agent_pb2.SessionRequest:
    """Return the Hello of a new node."""
    agent = SimulatedAgent(number, 1, lambda: None, job_id=job_id)
    message = agent.hello()
    message.session_id, message.connection = agent.session_id, 1
    return message


async def large_hellos(attack: Attack) -> Begin:
    """Refused for the name of their job."""
    attack.metadata = bearer("AGENT")
    hello = new_hello("x" * LARGE_BYTES)
    return lambda: attack.repeat(lambda: attack.hello(hello))


async def unfit_hellos(attack: Attack) -> Begin:
    """Refused because their job has another specification."""
    attack.metadata = bearer("AGENT")
    await attack.join()

    def hello() -> agent_pb2.SessionRequest:
        message = new_hello(JOB, next(attack.fresh))
        message.hello.spec.min_nodes = message.hello.spec.max_nodes = 7
        return message

    return lambda: attack.repeat(lambda: attack.hello(hello()))


async def fresh_jobs(attack: Attack) -> Begin:
    """Each stream begins another job with the longest texts, and stays."""
    attack.metadata = bearer("AGENT")
    open: list[Any] = []

    async def once() -> None:
        attack.calls += 1
        message = new_hello(f"{JOB}-{next(attack.fresh)}".ljust(255, "j"))
        message.hello.program.command_line = "c" * 4_096
        for number in range(32):
            message.hello.labels[f"{number}".rjust(256, "l")] = "v" * 256
        call: Any = attack.channel.stream_stream(METHOD)(metadata=attack.metadata)
        try:
            await call.write(message.SerializeToString())
            if await call.read() is not grpc.aio.EOF:
                open.append(call)
                return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        attack.codes[(await call.code()).name] += 1

    return lambda: attack.repeat(once)


async def endless_heartbeats(attack: Attack) -> Begin:
    """One session, as many as it can send."""
    attack.metadata = bearer("AGENT")
    agent = await attack.join()

    async def once() -> None:
        attack.calls += 1
        beat = agent_pb2.Heartbeat(number=1_000 + next(attack.fresh))
        await agent.say(agent_pb2.SessionRequest(heartbeat=beat), numbered=False)

    return lambda: attack.repeat(once, 1)


async def long_failures(attack: Attack) -> Begin:
    """One node reports 4,050 failed workers again and again, with the longest texts that fit."""
    attack.metadata = bearer("AGENT")
    agent = await attack.join(WORKERS)
    error = node_pb2.ErrorRecord(message="m" * 300, traceback="t" * 400)

    async def once() -> None:
        attack.calls += 1
        exit = node_pb2.WorkerExit(exit_code=1, error=error, stderr_tail="s" * 100)
        workers = [node_pb2.Worker(local_rank=rank, pid=1, exit=exit) for rank in range(WORKERS)]
        exited = agent_pb2.Exited(round=agent.round, workers=workers)
        await agent.say(agent_pb2.SessionRequest(exited=exited))

    return lambda: attack.repeat(once, 1)


async def crowd(attack: Attack) -> Begin:
    """Let a job of 4,096 nodes run."""
    await attack.stack.enter_async_context(
        running_job(attack.target, CROWD, job_id="crowd", metadata=bearer("AGENT"))
    )
    return lambda: asyncio.to_thread(sys.stdin.read)


ATTACKS: dict[str, dict[str, Callable[[Attack], Awaitable[Begin]]]] = {
    "no token": {
        "large calls": large_without_token,
        "small calls": small_without_token,
        "wrong tokens": wrong_tokens,
    },
    "viewer": {
        "large names": large_names,
        "400 GetJob of 4,096 nodes": read_crowd,
        "400 GetJob, never read": never_read_crowd,
    },
    "worker": {
        "600,000 empty writes": empty_writes,
        "fresh keys of 60 KB": partial(write_keys, is_fresh=True),
        "the same keys of 60 KB": partial(write_keys, is_fresh=False),
        "fresh barriers of 1,024 names": fresh_barriers,
    },
    "agent": {
        "large Hellos": large_hellos,
        "Hellos that do not fit": unfit_hellos,
        "fresh jobs": fresh_jobs,
        "endless heartbeats": endless_heartbeats,
        "4,050 failures with long texts": long_failures,
    },
}


async def main() -> None:
    """Attack."""
    name, target, seconds = sys.argv[1:]
    attack = Attack(target, float(seconds))
    kinds = {kind: begin for kinds in ATTACKS.values() for kind, begin in kinds.items()}
    begin = await {**kinds, "crowd": crowd}[name](attack)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    begun_s, spent_s = time.monotonic(), time.process_time()
    await begin()
    cores = (time.process_time() - spent_s) / (time.monotonic() - begun_s)
    counts = {"calls": attack.calls, "codes": attack.codes, "cores": cores}
    print(json.dumps(counts), flush=True)
    os._exit(0)  # thousands of open calls take grpc.aio minutes to end


if __name__ == "__main__":
    asyncio.run(main())
