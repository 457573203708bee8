"""Boundary values of every field of every client message, sent while a real job runs."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.v1 import event_service_pb2_grpc as events_grpc
from rallypoint.v1 import job_service_pb2_grpc as job_grpc
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from rallypoint.v1 import worker_service_pb2_grpc as worker_grpc
from rallypoint.wire.channel import client_options
from support.contract.boundaries import variants
from support.contract.samples import (
    JOB,
    full_hello,
    holding_hello,
    ready_hello,
    reports,
    requests,
    session_id,
)
from support.processes.jobs import is_started, pids
from support.processes.world import NEW, World

LIFTED = Path(__file__).parents[3] / "benchmarks" / "harness" / "lifted.py"
"""A coordinator that lets one host open as many jobs as it likes."""
NUMBERS = count(1_000)
LIMIT_S = 30
"""Longest wait for one answer."""
NEVER = "notices"
"""A kind of answer that no agent of these tests gets: its stream is read to its end."""
PAGE = 100
OUR_FAULT = {"UNKNOWN", "INTERNAL", "DATA_LOSS", "DEADLINE_EXCEEDED"}


class Sender:
    """Sends each variant on a separate stream, and counts how the streams ended."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.agents: Any = agent_grpc.AgentServiceStub(channel)
        self.stubs: list[Any] = [
            coordinator_grpc.CoordinatorServiceStub(channel),
            job_grpc.JobServiceStub(channel),
            node_grpc.NodeServiceStub(channel),
            barrier_grpc.BarrierServiceStub(channel),
            keys_grpc.KeyValueServiceStub(channel),
            events_grpc.EventServiceStub(channel),
            worker_grpc.WorkerServiceStub(channel),
        ]
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []

    def note(self, name: str, code: grpc.StatusCode | None, details: str | None) -> None:
        end = "WELCOME" if code is None else code.name
        self.ends[end] += 1
        if end in OUR_FAULT:
            self.faults.append(f"{name}: {end}: {details}")

    async def read(self, call: Any, name: str, kind: str) -> Any:
        """Read until an answer of this kind, and return it; None when the stream ended."""
        answer: Any = None
        try:
            async with asyncio.timeout(LIMIT_S):
                while answer is not grpc.aio.EOF:
                    answer = await call.read()
                    if answer is not grpc.aio.EOF and answer.HasField(kind):
                        return answer
        except grpc.aio.AioRpcError:
            pass  # its code says why
        self.note(name, await call.code(), await call.details())
        return None

    async def say_hello(self, name: str, envelope: agent_pb2.SessionRequest) -> None:
        """Send a Hello; the stream breaks after the answer."""
        call = self.agents.Session()
        await call.write(envelope)
        if await self.read(call, f"hello: {name}", "welcome") is not None:
            self.note(name, None, "")
        call.cancel()

    async def report(self, kind: str, message: Message) -> None:
        """Send every variant of a report, each by an agent whose round of one node runs."""
        sample = agent_pb2.SessionRequest(
            session_id=session_id(0),
            connection=1,
            sequence=0 if kind == "heartbeat" else 1,
            **{kind: message},  # type: ignore[arg-type]  # one arm of the envelope
        )
        for name, variant in variants(sample):
            session = session_id(next(NUMBERS))
            hello = ready_hello(1, f"{JOB}-{next(NUMBERS)}")
            hello.spec.min_nodes = hello.spec.max_nodes = 1
            call = self.agents.Session()
            first = agent_pb2.SessionRequest(session_id=session, connection=1, hello=hello)
            await call.write(first)
            welcome = await self.read(call, "honest", "welcome")
            assert welcome is not None, "an honest Hello was refused"
            if variant.session_id == session_id(0):
                variant.session_id = session
            if not variant.epoch:
                variant.epoch = welcome.epoch
            await call.write(variant)
            await call.done_writing()  # the coordinator handles the report before it sees this
            await self.read(call, f"{kind}: {name}", NEVER)
            call.cancel()

    async def ask(self, rpc: str, name: str, request: Message) -> None:
        """Send a request of a reader or an operator."""
        stub = next(stub for stub in self.stubs if hasattr(stub, rpc))
        call = getattr(stub, rpc)(request, timeout=LIMIT_S)
        try:
            await (call.read() if rpc.startswith("Watch") else call)
            self.note(name, None, "")
        except grpc.aio.AioRpcError as error:
            self.note(f"{rpc}: {name}", error.code(), error.details())
        finally:
            call.cancel()


def hellos() -> Iterator[tuple[str, agent_pb2.SessionRequest]]:
    """Yield variants of three kinds of Hello: ready, and holding a round that runs or failed.

    Each is of another agent and another job.
    """
    for hello in (ready_hello(1), holding_hello(1, 1), full_hello(1, 1)):
        first = agent_pb2.SessionRequest(session_id=session_id(0), connection=1, hello=hello)
        for name, variant in variants(first):
            if variant.session_id == session_id(0):
                variant.session_id = session_id(next(NUMBERS))
            if variant.hello.job_id == JOB:
                variant.hello.job_id = f"{JOB}-{next(NUMBERS)}"
            yield name, variant


async def send_everything(target: str) -> Sender:
    async with grpc.aio.insecure_channel(target, options=client_options()) as channel:
        sender = Sender(channel)
        for name, hello in hellos():
            await sender.say_hello(name, hello)
        for kind, message in reports(1).items():
            await sender.report(kind, message)
        asked = sender.agents.Session()  # the job that requests are about
        await asked.write(
            agent_pb2.SessionRequest(session_id=session_id(1), connection=1, hello=ready_hello(1))
        )
        assert await sender.read(asked, "honest", "welcome") is not None
        for rpc, request in requests("node1").items():
            for name, variant in variants(request):
                await sender.ask(rpc, name, variant)
        asked.cancel()
    return sender


def list_jobs(world: World) -> set[str]:
    """Return the names of all jobs, read page by page."""
    names: set[str] = set()
    page = world.jobs.page(PAGE)
    while page.next_page_token:
        names |= {job.job_id for job in page.jobs}
        page = world.jobs.page(PAGE, page.next_page_token)
    return names | {job.job_id for job in page.jobs}


@pytest.mark.long
async def test_no_value_disturbs_a_job(world: World) -> None:
    """No UNKNOWN and no INTERNAL; the job keeps its round and its workers; all jobs are listed."""
    world.coordinator(0, *NEW, program=(sys.executable, LIFTED))
    agents = [world.agent(name, nnodes="2") for name in ("a", "b")]
    workers = world.mailbox.workers(2)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))

    sender = await send_everything(world.target)

    print(sender.ends)  # shown when it fails
    assert [] == sender.faults
    assert {"WELCOME", "OK", "INVALID_ARGUMENT"} <= set(sender.ends)
    after = world.jobs.get(world.job_id)
    assert (before.round.header, pids(before)) == (after.round.header, pids(after))
    assert {world.job_id, "created"} <= list_jobs(world)  # JOB itself may be deleted
    assert not [agent for agent in agents if agent.events("coordinator_reached_again")]
    for worker in workers:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
