"""An agent that sends heartbeats or large messages in a loop slows only itself down."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.server.core.model.spec import Timing
from rallypoint.server.rpc import connections
from rallypoint.server.rpc.connections import Connections
from rallypoint.server.rpc.guards.allowances import BEATS_PER_INTERVAL, QUEUED_MAX, Beats
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import node_pb2
from support.core.served import served

INTERVAL_S = 8.0
HOURS = Timing(window_ms=0, heartbeat_ms=3_600_000, lease_ms=4 * 3_600_000)
"""What is held back for a part of these is not heard in a test."""
LEASE_S = 3 * INTERVAL_S
WORKERS = 4_096
BURST = BEATS_PER_INTERVAL + 3


def test_beats_of_an_interval_are_bounded() -> None:
    """A few come at once, and as many in each interval; one that waits may continue after that."""
    beats = Beats()
    delays = [beats.delay_s(1_000.0, INTERVAL_S, LEASE_S) for _ in range(BURST + 2)]

    assert [0.0] * BURST == delays[:-2]
    assert [INTERVAL_S / BEATS_PER_INTERVAL * late for late in (1, 2)] == delays[-2:]
    assert beats.delay_s(1_000.0 + 4 * INTERVAL_S, INTERVAL_S, LEASE_S) == 0.0


def test_one_too_many_of_a_relay_is_not_counted() -> None:
    """So the next one that is in time is heard."""
    beats = Beats()
    heard = [beats.allows(1_000.0, INTERVAL_S, LEASE_S) for _ in range(50)]

    assert BURST == sum(heard)
    assert beats.allows(1_000.0 + INTERVAL_S / BEATS_PER_INTERVAL, INTERVAL_S, LEASE_S)


@pytest.mark.parametrize(("lease_s", "queued"), [(60.0, 60), (86_400.0, QUEUED_MAX)])
def test_what_a_network_has_held_back_is_taken_at_once(lease_s: float, queued: int) -> None:
    """An exit that follows these heartbeats is dated when it comes, not seconds later."""
    beats = Beats()
    delays = {beats.delay_s(1_000.0, 1.0, lease_s) for _ in range(queued)}

    assert delays == {0.0}


def note_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the session of each message that the coordinator reads, as it happens."""
    read: list[str] = []
    genuine = Connections.note

    def note(self: Connections, connection: object, envelope: object) -> object:
        read.append(envelope.session_id)  # type: ignore[attr-defined]  # a SessionRequest
        return genuine(self, connection, envelope)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(Connections, "note", note)
    return read


async def test_heartbeats_in_a_loop_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator reads a few of them, and answers another agent meanwhile."""
    read = note_reads(monkeypatch)
    async with asyncio.timeout(60), served(HOURS) as server:
        loud, quiet = await server.join("job", 1), await server.join("other", 2)
        read.clear()
        for number in range(1, 201):
            beat = agent_pb2.Heartbeat(number=number)
            await loud.write(agent_pb2.SessionRequest(heartbeat=beat))
        await quiet.check_alive()

        assert 1 == read.count(quiet.session_id)
        assert 1 <= read.count(loud.session_id) <= BEATS_PER_INTERVAL + 4


async def test_large_messages_in_a_loop_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator reads one of them at once, and answers another agent meanwhile."""
    read = note_reads(monkeypatch)
    monkeypatch.setattr(connections, "REST_RATIO", 1e6)
    monkeypatch.setattr(connections, "REST_S_MAX", 3_600.0)
    async with asyncio.timeout(60), served(HOURS) as server:
        loud, quiet = server.agent("job", 1), await server.join("other", 2)
        await loud.hello(local_world_size=WORKERS)
        await loud.read()
        read.clear()
        exit = node_pb2.WorkerExit(exit_code=1)
        workers = [node_pb2.Worker(local_rank=rank, exit=exit) for rank in range(WORKERS)]
        for _ in range(2):  # more would wait to be sent
            await loud.report(exited=agent_pb2.Exited(round=1, workers=workers))
        await quiet.check_alive()
        await quiet.check_alive()

        assert read.count(loud.session_id) <= 1
