"""Random, almost valid envelopes in a row, sent to a coordinator while a real job runs.

MUTATIONS=100000 python -m pytest -q -n 0 -s tests/e2e/operations/test_mutations.py
"""

from __future__ import annotations

import asyncio
import copy
import os
import time
from collections import Counter
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.channel import client_options
from rallypoint.wire.errors import unpack_details
from support.contract.boundaries import Change, changes
from support.contract.samples import (
    JOB,
    full_hello,
    holding_hello,
    ready_hello,
    reports,
    session_id,
)
from support.processes.jobs import is_started, pids
from support.processes.processes import rss_mb
from support.processes.world import NEW, World
from support.tries.commit import draw

BYTES_MAX = 64 * 1_024
"""Longest envelope; longer ones are left to the boundary tests, because they take time."""
CHANGES_MAX = 3
"""Most changes of one envelope."""
ATTEMPTS_MAX = 20
"""Draws of a change until one fits."""
BYTES_PERCENT = 30
"""Share of the envelopes whose bytes are changed."""
EDGES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)


class Mutator:
    """Mutates envelopes like one sample."""

    def __init__(self, sample: agent_pb2.SessionRequest) -> None:
        """Prepare the changes of its fields, but for those that make lists very long."""
        named = changes(sample)
        self._changes: list[Change] = [one for name, one in named if not name.endswith(" more")]

    def mutate(self, rng: Random, envelope: agent_pb2.SessionRequest) -> bytes:
        """Return a mutated copy of an envelope, encoded."""
        if rng.randrange(100) < BYTES_PERCENT:
            return _change_bytes(rng, envelope.SerializeToString())
        mutated = copy.deepcopy(envelope)
        for _ in range(rng.randint(1, CHANGES_MAX)):
            mutated = self._change_field(rng, mutated)
        return mutated.SerializeToString()

    def _change_field(self, rng: Random, envelope: Any) -> Any:
        for _ in range(ATTEMPTS_MAX):
            changed = copy.deepcopy(envelope)
            try:
                rng.choice(self._changes)(changed)
            except (IndexError, ValueError):
                continue  # an earlier change has removed what it is about
            if changed.ByteSize() <= BYTES_MAX:
                return changed
        return envelope


def _change_bytes(rng: Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.randint(1, CHANGES_MAX)):
        place, length = rng.randrange(len(changed) + 1), rng.randint(1, 16)
        match rng.randrange(6):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(changed):
                changed[place] = rng.choice(EDGES)
            case 2:
                del changed[place : place + length]
            case 3:
                changed[place:place] = changed[place : place + length]
            case 4:
                changed[place:place] = rng.randbytes(length)
            case _:
                del changed[place:]
    return bytes(changed)


COUNT = int(os.environ.get("MUTATIONS", "2000"))
SEED = int(os.environ.get("SEED", draw("mutations", 10**6)))
"""Other envelopes for each commit."""
STREAMS = 16
"""Streams that are open at once."""
JOBS = 10_000
"""Names of jobs, more than the coordinator remembers."""
HELLO_PERCENT = 30
"""Share of the streams that begin with a mutated Hello."""
REAL_PERCENT = 10
"""Share of these that name the real job."""
LIMIT_S = 60
"""Longest wait for one answer."""
RSS_MB_MAX = 256
"""How much more memory the coordinator may have afterwards. It remembers 4,096 jobs."""
METHOD = "/rallypoint.v1.AgentService/Session"
OUR_FAULT = {"UNKNOWN", "INTERNAL", "DATA_LOSS", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
ENDING = "PREVIOUS_RUN_ENDING"
"""Why a job may be UNAVAILABLE that has lost its agents: a Hello with another spec waits until its
run is over. Many streams name the same job, but the real job has its agents all the time."""


class Storm:
    """Sends envelopes on many streams, and counts how the streams ended."""

    def __init__(self, channel: grpc.aio.Channel, real_job_id: str) -> None:
        self._real_job_id = real_job_id
        self._real_ending = details_pb2.PreviousRunEnding(job_id=real_job_id, run=1)
        self._open: Any = channel.stream_stream(
            METHOD, response_deserializer=agent_pb2.SessionResponse.FromString
        )
        hellos = (ready_hello(1), holding_hello(1, 1), full_hello(1, 1))
        self._hellos = [agent_pb2.SessionRequest(connection=1, hello=hello) for hello in hellos]
        self._reports = [
            agent_pb2.SessionRequest(
                connection=1,
                sequence=0 if kind == "heartbeat" else 1,
                **{kind: message},  # type: ignore[arg-type]  # one arm of the envelope
            )
            for kind, message in reports(1).items()
        ]
        samples = (*self._hellos, *self._reports)
        self._mutators = {id(sample): Mutator(sample) for sample in samples}
        self.sent = 0
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []

    async def rage(self, count: int) -> None:
        """Send so many mutated envelopes."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(STREAMS):
                tasks.create_task(self._send(Random(f"{SEED}-{number}"), count))

    async def _send(self, rng: Random, count: int) -> None:
        while self.sent < count:
            call = self._open()
            name = f"envelope {self.sent}"
            try:
                async with asyncio.timeout(LIMIT_S):
                    if rng.randrange(100) < HELLO_PERCENT:
                        await self._begin_badly(rng, call)
                    else:
                        await self._go_bad(rng, call)
            except grpc.aio.AioRpcError:
                pass  # its code says why
            except TimeoutError:
                self.faults.append(f"{name}: no end within {LIMIT_S} s")
            await self._note_end(name, call)
            call.cancel()

    async def _begin_badly(self, rng: Random, call: Any) -> None:
        """Send a mutated Hello, and wait for the answer or the end."""
        sample = rng.choice(self._hellos)
        envelope = agent_pb2.SessionRequest()
        envelope.CopyFrom(sample)
        envelope.session_id = session_id(rng.getrandbits(128))
        is_real = rng.randrange(100) < REAL_PERCENT
        envelope.hello.job_id = self._real_job_id if is_real else f"{JOB}-{rng.randrange(JOBS)}"
        await self._write(call, self._mutators[id(sample)].mutate(rng, envelope))
        await call.read()

    async def _go_bad(self, rng: Random, call: Any) -> None:
        """Send an honest Hello, then a mutated message, and wait for the end."""
        session = session_id(rng.getrandbits(128))
        hello = ready_hello(1, f"{JOB}-{rng.randrange(JOBS)}")
        hello.spec.min_nodes = hello.spec.max_nodes = 1
        first = agent_pb2.SessionRequest(session_id=session, connection=1, hello=hello)
        await call.write(first.SerializeToString())
        answer = await call.read()
        if answer is grpc.aio.EOF:
            return
        sample = rng.choice(self._reports)
        envelope = agent_pb2.SessionRequest()
        envelope.CopyFrom(sample)
        envelope.session_id, envelope.epoch = session, answer.epoch
        await self._write(call, self._mutators[id(sample)].mutate(rng, envelope))
        while await call.read() is not grpc.aio.EOF:
            pass

    async def _write(self, call: Any, raw: bytes) -> None:
        """Write the last message of a stream."""
        self.sent += 1
        await call.write(raw)
        await call.done_writing()

    async def _note_end(self, name: str, call: Any) -> None:
        if not call.done():
            self.ends["WELCOME"] += 1
            return
        code, details = await call.code(), await call.details()
        found = unpack_details(await call.trailing_metadata())
        is_ending = found.reason == ENDING and found.own != self._real_ending
        self.ends[ENDING if is_ending else code.name] += 1
        if code.name in OUR_FAULT and not is_ending:
            self.faults.append(f"{name}: {code.name}: {details}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "new sessions" in details:
            self.sent -= 1  # the coordinator has not looked at it
            await asyncio.sleep(1)


async def send(target: str, real_job_id: str) -> Storm:
    async with grpc.aio.insecure_channel(target, options=client_options()) as channel:
        storm = Storm(channel, real_job_id)
        await storm.rage(COUNT)
    return storm


@pytest.mark.long
@pytest.mark.timeout(7_200)
async def test_no_mutation_disturbs_a_job(world: World) -> None:
    """No UNKNOWN, no INTERNAL; the job keeps its round; the coordinator's memory is bounded."""
    coordinator = world.coordinator(0, *NEW, "--log-level=error")
    agents = [world.agent(name, nnodes="2") for name in ("a", "b")]
    workers = world.mailbox.workers(2)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    rss_before_mb, began_s = rss_mb(coordinator.pid), time.monotonic()

    storm = await send(world.target, world.job_id)

    grown_mb, took_s = rss_mb(coordinator.pid) - rss_before_mb, time.monotonic() - began_s
    print(f"{storm.sent} envelopes in {took_s:.0f} s: {dict(storm.ends)}")
    print(f"memory of the coordinator: {rss_before_mb:.0f} MiB, afterwards {grown_mb:.0f} more")
    assert [] == storm.faults
    after = world.jobs.get(world.job_id)
    assert (before.round.header, pids(before)) == (after.round.header, pids(after))
    assert not [agent for agent in agents if agent.events("coordinator_reached_again")]
    assert "" == coordinator.stderr()
    assert grown_mb < RSS_MB_MAX
    for worker in workers:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
