"""Calls that a relay passes on count for the hosts of its agents, not for that of the relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.access.usage.callers import as_made
from rallypoint.server.access.usage.peers import Peers, connected_host, host_of, is_peer, name_by
from rallypoint.server.agents.relays import carrying
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.core.model.ids import JobId
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_service_pb2, job_service_pb2_grpc
from rallypoint.wire.credentials import RELAYED_PEER_KEY
from support.access.protected import AGENT, RELAY, RULES, VIEWER, bearer, protected_site
from support.core.served import LIMIT_S, Served, served
from support.relays.carried import Entry, HandRelay, opening

PEERS = {1: "ipv4:10.0.0.1:9", 2: "ipv4:10.0.0.2:9", 3: "ipv4:10.0.0.3:9"}


@pytest.fixture(autouse=True)
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "LOOK_S", 60.0)  # these relays show no life by themselves
    monkeypatch.setattr(limits, "WATCHERS_PER_HOST_MAX", 1)


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    async with served() as made:
        yield made


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    """Of a coordinator that asks who calls."""
    async with (
        protected_site(tmp_path, rules=RULES, needs_client=False) as site,
        site.channel() as made,
    ):
        yield made


class Watches:
    """Watches of a job, in the name of other hosts."""

    def __init__(self, channel: grpc.aio.Channel, token: str = "") -> None:
        self._stub = job_service_pb2_grpc.JobServiceStub(channel)
        self._token = token
        self._open: list[Any] = []

    async def begin(self, *hosts: str) -> str:
        """Begin one; return how it ended, or OK when it has an answer."""
        request = job_service_pb2.WatchJobRequest(job_id="a1")
        named = tuple((RELAYED_PEER_KEY, f"ipv4:{host}:4711") for host in hosts)
        metadata = (*bearer(self._token), *named)
        call: Any = self._stub.WatchJob(request, metadata=metadata, timeout=LIMIT_S)
        self._open.append(call)
        try:
            assert await call.read() is not grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"


async def join(relay: HandRelay, **more: Any) -> None:
    await relay.send(*(opening(at, f"a{at}", peer=PEERS[at], **more) for at in PEERS))
    for number in PEERS:
        await relay.wait(number, "welcome")


async def test_each_node_has_its_own_limits(channel: grpc.aio.Channel) -> None:
    """As long as the relay carries its agent; what no agent vouches for counts for the relay."""
    relay = await HandRelay(channel, bearer(RELAY)).begin()
    await join(relay, authorization=f"Bearer {AGENT}")
    watches = Watches(channel, VIEWER)
    hosts = ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.9.9.9", "10.8.8.8")
    found = [await watches.begin(host) for host in hosts]

    assert ["OK", "OK", "RESOURCE_EXHAUSTED", "OK", "RESOURCE_EXHAUSTED"] == found
    await relay.send(Entry(stream=3, closing=agent_pb2.RelayedClosing(still_reads=True)))
    await relay.wait(3, "end")
    assert "RESOURCE_EXHAUSTED" == await watches.begin("10.0.0.3")


async def test_relay_names_the_caller_last(channel: grpc.aio.Channel) -> None:
    """What the caller itself has named before does not count."""
    relay = await HandRelay(channel, bearer(RELAY)).begin()
    await join(relay, authorization=f"Bearer {AGENT}")
    watches = Watches(channel, VIEWER)
    found = [await watches.begin(named, "10.0.0.1") for named in ("10.0.0.2", "10.0.0.3")]

    assert ["OK", "RESOURCE_EXHAUSTED"] == found


async def test_relay_is_not_believed_without_tokens(server: Served) -> None:
    """Anyone may say that it carries agents of many hosts: all calls count for its own."""
    await join(await HandRelay(server.channel).begin())
    watches = Watches(server.channel)
    found = [await watches.begin(host) for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3")]

    assert ["OK", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"] == found


async def test_no_relay_is_believed_without_agents(server: Served) -> None:
    """A client that calls directly counts for its host, also if it names another."""
    await server.join("a1", 1)
    watches = Watches(server.channel)
    async with asyncio.timeout(LIMIT_S):
        found = [await watches.begin(host) for host in ("10.0.0.1", "10.0.0.2")]

    assert ["OK", "RESOURCE_EXHAUSTED"] == found


def test_hosts_are_forgotten() -> None:
    """With the last agent that a relay carries of each."""
    peers = Peers()
    with peers.carried("10.0.0.1", "10.0.0.5"), peers.carried("10.0.0.1", "10.0.0.5"):
        named = peers.find_caller("ipv4:10.0.0.1:2", "ipv4:10.0.0.5:1")
        assert "ipv4:10.0.0.5:1 via ipv4:10.0.0.1:2" == named
        assert ("10.0.0.5 via 10.0.0.1", "10.0.0.1") == (host_of(named), connected_host(named))
        assert "ipv4:10.0.0.9:2" == peers.find_caller("ipv4:10.0.0.9:2", "ipv4:10.0.0.5:1")
    assert not peers.is_relay("ipv4:10.0.0.1:2")
    assert "ipv4:10.0.0.1:2" == peers.find_caller("ipv4:10.0.0.1:2", "ipv4:10.0.0.5:1")


def test_relay_uses_up_nothing_of_the_host_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its streams, nor its jobs, nor its sessions; its own host pays for all of them."""
    monkeypatch.setattr(limits, "JOBS_PER_HOST_MAX", 2)
    monkeypatch.setattr(limits, "SESSIONS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(limits, "STREAMS_PER_HOST_MAX", 3)
    peers, honest, relay = Peers(), "ipv4:10.0.0.9:1", "ipv4:10.0.0.1:2"
    with ExitStack() as held:
        for job_id in ("a", "b"):
            stream = held.enter_context(peers.stream(name_by(relay, honest), 0.0))
            peers.admit(stream, JobId(job_id), 0.0, is_new=True)
        for other in ("ipv4:10.0.0.9:3", "ipv4:10.0.0.8:1"):
            with peers.stream(name_by(relay, other), 0.0) as stream:
                with pytest.raises(LimitExceeded):
                    peers.admit(stream, JobId("c"), 0.0, is_new=True)
                peers.refund(stream)
        for job_id in ("c", "d"):
            stream = held.enter_context(peers.stream(honest, 0.0))
            peers.admit(stream, JobId(job_id), 0.0, is_new=True)
    with peers.stream(name_by(relay, honest), 60.0) as stream:
        peers.admit(stream, JobId("e"), 60.0, is_new=True)


def test_metadata_is_read_behind_relays_alone() -> None:
    """Every other call costs no more than without relays."""

    class Unread:
        def peer(self) -> str:
            return "ipv4:10.0.0.9:2"

        def invocation_metadata(self) -> None:
            raise AssertionError

    peers, context = Peers(), Unread()
    with peers.carried("10.0.0.1", "10.0.0.5"):
        assert context is as_made(peers, "/rallypoint.v1.JobService/GetJob", context)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("ipv4:10.0.0.1:9", True),
        ("ipv6:%5B::1%5D:9", True),
        ("unix:/run/socket", True),
        ("", False),
        ("10.0.0.1", False),
        ("dns:host:1", False),
        ("unix:" + "x" * 248, True),
        ("unix:" + "x" * 249, False),
        ("unix:a b", False),
        ("ipv4:", False),
        ("ipv4:ann:1", False),
        ("ipv4:10.0.0.1:9 via ipv4:10.0.0.2:1", False),
        ("ipv4:10.0.0.1:9\u2028", False),
    ],
)
def test_peer_has_a_form(text: str, *, counts: bool) -> None:
    """What a relay names is a peer of gRPC, of bounded length."""
    assert counts == is_peer(text)
