"""Calls that a relay passes on count for the hosts of its agents, not for that of the relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.rpc.guards import limits
from rallypoint.server.rpc.guards.peers import Peers
from rallypoint.server.rpc.relays import carrying
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_service_pb2, job_service_pb2_grpc
from rallypoint.wire.credentials import RELAYED_PEER_KEY
from support.core.served import LIMIT_S, Served, served
from support.relays.carried import Entry, HandRelay, opening


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(carrying, "LOOK_S", 60.0)  # these relays show no life by themselves
    monkeypatch.setattr(limits, "WATCHERS_PER_HOST_MAX", 1)
    async with served() as made:
        yield made


class Watches:
    """Watches of a job, in the name of other hosts."""

    def __init__(self, server: Served) -> None:
        self._stub = job_service_pb2_grpc.JobServiceStub(server.channel)
        self._open: list[Any] = []

    async def begin(self, host: str) -> str:
        """Begin one; return how it ended, or OK when it has an answer."""
        request = job_service_pb2.WatchJobRequest(job_id="a1")
        metadata = ((RELAYED_PEER_KEY, f"ipv4:{host}:4711"),)
        call: Any = self._stub.WatchJob(request, metadata=metadata, timeout=LIMIT_S)
        self._open.append(call)
        try:
            assert await call.read() is not grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"


async def test_each_node_has_its_own_limits(server: Served) -> None:
    """As long as the relay carries its agent; what no agent vouches for counts for the relay."""
    relay = await HandRelay(server.channel).begin()
    peers = {1: "ipv4:10.0.0.1:9", 2: "ipv4:10.0.0.2:9", 3: "ipv4:10.0.0.3:9"}
    await relay.send(*(opening(number, f"a{number}", peer=peers[number]) for number in peers))
    for number in peers:
        await relay.wait(number, "welcome")
    watches = Watches(server)
    hosts = ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.9.9.9", "10.8.8.8")
    found = [await watches.begin(host) for host in hosts]

    assert ["OK", "OK", "RESOURCE_EXHAUSTED", "OK", "RESOURCE_EXHAUSTED"] == found
    await relay.send(Entry(stream=3, closing=agent_pb2.RelayedClosing(still_reads=True)))
    await relay.wait(3, "end")
    assert "RESOURCE_EXHAUSTED" == await watches.begin("10.0.0.3")


async def test_no_relay_is_believed_without_agents(server: Served) -> None:
    """A client that calls directly counts for its host, also if it names another."""
    await server.join("a1", 1)
    watches = Watches(server)
    async with asyncio.timeout(LIMIT_S):
        found = [await watches.begin(host) for host in ("10.0.0.1", "10.0.0.2")]

    assert ["OK", "RESOURCE_EXHAUSTED"] == found


def test_hosts_are_forgotten() -> None:
    """With the last agent that a relay carries of each."""
    peers = Peers()
    with peers.carried("10.0.0.1", "10.0.0.5"), peers.carried("10.0.0.1", "10.0.0.5"):
        assert "ipv4:10.0.0.5:1" == peers.find_caller("ipv4:10.0.0.1:2", "ipv4:10.0.0.5:1")
        assert "ipv4:10.0.0.9:2" == peers.find_caller("ipv4:10.0.0.9:2", "ipv4:10.0.0.5:1")
    assert not peers.is_relay("ipv4:10.0.0.1:2")
    assert "ipv4:10.0.0.1:2" == peers.find_caller("ipv4:10.0.0.1:2", "ipv4:10.0.0.5:1")
