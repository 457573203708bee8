"""The blocking client and a coordinator that comes back while nothing polls the channel to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from rallypoint.client import Client, Scope, sync_transport
from rallypoint.client.channel import Connections, Line
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import worker_service_pb2 as workers_pb2
from support.clients.scripted import LIMIT_S, Script
from support.core.served import served
from support.machines.proxy import Proxy

DEAD = "127.0.0.1:1"
"""Where nothing listens."""


class Away:
    """A coordinator whose address is certain before it is there."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self.target = f"127.0.0.1:{port}"
        self.script = Script()
        self._stack = stack

    def come_back(self) -> None:
        """Serve the script."""
        server = grpc.server(
            self._stack.enter_context(ThreadPoolExecutor(2)), handlers=[self.script]
        )
        server.add_insecure_port(self.target)
        server.start()
        self._stack.callback(lambda: server.stop(None).wait(LIMIT_S))


@contextmanager
def away() -> Iterator[Away]:
    """Keep a port on which nothing listens yet; gRPC may listen there too."""
    with socket.socket() as kept, ExitStack() as stack:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        yield Away(kept.getsockname()[1], stack)


@contextmanager
def coming_back(monkeypatch: pytest.MonkeyPatch, pauses: int) -> Iterator[Away]:
    """The coordinator comes back in the first pause of a client, which makes at most `pauses`."""
    left = [pauses]

    def pause(_: sync_transport.Transport, pause_s: float) -> None:
        assert left[0] > 0, f"another pause, of {pause_s} s: the coordinator is back"
        if left[0] == pauses:
            coordinator.come_back()
        left[0] -= 1

    with away() as coordinator:
        monkeypatch.setattr(sync_transport.Transport, "pause", pause)
        yield coordinator


def test_watch_connects_at_its_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not fail with what an earlier attempt of the channel has found."""
    answer = jobs_pb2.WatchJobResponse(revision=4, missing=True)
    with coming_back(monkeypatch, pauses=1) as coordinator:
        coordinator.script.answers["WatchJob"] = [[answer]]
        with Client(coordinator.target, limit_s=LIMIT_S) as client:
            assert [answer] == list(client.watch_job("j"))


def test_call_to_one_of_several_connects_at_its_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not wait for a connection, but calls the other one, and then this one again."""
    answer = jobs_pb2.GetJobResponse(job=job_pb2.Job(run=4))
    with coming_back(monkeypatch, pauses=2) as coordinator:
        coordinator.script.answers["GetJob"] = [answer]
        with Client(f"{coordinator.target},{DEAD}", limit_s=LIMIT_S) as client:
            assert answer == client.get_job("j")


def test_report_without_waiting_connects_at_its_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As soon as the client knows that the one before it has failed."""
    is_dropped, drop = threading.Event(), Connections.drop

    def note(connections: Connections[grpc.Channel], target: str, line: Line[grpc.Channel]) -> None:
        drop(connections, target, line)
        is_dropped.set()

    monkeypatch.setattr(Connections, "drop", note)
    answer = workers_pb2.ReportProgressResponse()
    with away() as coordinator, Client(coordinator.target, token="secret") as client:
        coordinator.script.answers["ReportProgress"] = [answer]
        failed = client.begin_report("j", 1, LIMIT_S)
        assert failed.code() is grpc.StatusCode.UNAVAILABLE
        assert is_dropped.wait(LIMIT_S)
        coordinator.come_back()

        assert answer == client.begin_report("j", 2, LIMIT_S).result(LIMIT_S)


async def test_durable_coordinator_counts_what_met_a_lost_connection(tmp_path: Path) -> None:
    """Without a health check: the first attempt fails, and its repetition counts, once."""
    journal = SqliteJournal.open(tmp_path / "journal")
    me = barrier_pb2.Participant(rank=0)
    async with served(journal=journal) as server:
        agent = server.agent("job", 1)
        await agent.hello()
        token = (await agent.read()).welcome.desired.run.worker_token
        with Proxy(f"127.0.0.1:{server.running.port}") as proxy:
            client = Client(proxy.address, token=token, limit_s=LIMIT_S)

            def use() -> tuple[int, int]:
                """Return the sum and the generation after one more of each."""
                added = client.add_to_key("job", "k", 1, scope=Scope.RUN)
                return added.sum, client.arrive("job", "b", me, timeout_s=LIMIT_S).generation

            with client:
                found = [await asyncio.to_thread(use)]
                for _ in range(3):
                    await asyncio.to_thread(proxy.cut)
                    found.append(await asyncio.to_thread(use))

    assert found == [(number, number) for number in (1, 2, 3, 4)]
