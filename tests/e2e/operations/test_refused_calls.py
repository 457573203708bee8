"""Large calls that the coordinator refuses: from anyone, or with a token of another job."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from msgspec import Struct

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.channel import client_options
from support.access.protected import bearer, entry, write_rules
from support.processes.processes import rss_mb
from support.processes.world import NEW, World
from support.tries.commit import choose_long

LIMIT_S = 60
TOKEN = "rp_of-another-job"
codes = grpc.StatusCode
GROWN_MB_MAX = 64
"""How much more memory the coordinator may have after a flood."""


WATCHES = 60
MORE = b"x" * 3_900_000
LATER_CALLS = 300


class Flood(Struct, frozen=True):
    """A refused call, again and again."""

    method: str
    request: bytes
    calls: int
    role: str = ""
    """Of the token that the caller shows, which is for another job; empty: no one is asked."""


def with_text(size: int) -> bytes:
    """Return a request whose first field is a text of so many characters."""
    return agent_pb2.SessionRequest(session_id="x" * size).SerializeToString()


def empty_parts(field: int, count: int) -> bytes:
    """Return a message whose field has so many entries without content: they inflate 27 times."""
    return bytes([field << 3 | 2, 0]) * count


LONG_JOB = agent_pb2.Hello(protocol_version=1, job_id="x" * 3_900_000)
HELLO = agent_pb2.SessionRequest(session_id="0" * 32, hello=LONG_JOB).SerializeToString()
FLOODS = {
    "health": Flood("grpc.health.v1.Health/Check", with_text(3_900_000), 60),
    "read": Flood("rallypoint.v1.JobService/GetJob", with_text(3_000_000), 120),
    "read_that_is_decoded": Flood("rallypoint.v1.JobService/GetJob", with_text(60_000), 3_000),
    "keys": Flood("rallypoint.v1.KeyValueService/WriteKeys", empty_parts(3, 2_000_000), 20),
    "keys_that_are_decoded": Flood(
        "rallypoint.v1.KeyValueService/WriteKeys", empty_parts(3, 600_000), 20
    ),
    "hello": Flood("rallypoint.v1.AgentService/Session", HELLO, 40),
    "hello_with_token": Flood("rallypoint.v1.AgentService/Session", HELLO, 40, "agent"),
}


async def refuse(channel: grpc.aio.Channel, flood: Flood) -> None:
    """Make the call; it is refused."""
    make: Any = channel.stream_stream(f"/{flood.method}")
    call = make(timeout=LIMIT_S, metadata=bearer(TOKEN) if flood.role else ())
    await call.write(flood.request)
    code = await call.code()

    assert code in (codes.INVALID_ARGUMENT, codes.UNAUTHENTICATED, codes.PERMISSION_DENIED)


@pytest.mark.parametrize(
    "name",
    [
        # Refused calls wait for their answers: most floods take a minute.
        pytest.param(
            name, marks=() if name == "hello_with_token" else choose_long("refused calls", at, 3)
        )
        for at, name in enumerate(FLOODS)
    ],
)
async def test_refused_calls_keep_no_memory(tmp_path: Path, name: str) -> None:
    """No caller can fill the memory of the coordinator, however large its calls.

    This takes the real command: its garbage collector runs far more seldom than Python's does.
    """
    flood, protected = FLOODS[name], list[str]()
    if flood.role:
        rules = entry("other", flood.role, TOKEN, more='jobs = ["other"]')
        protected = ["--auth", write_rules(tmp_path / "auth.toml", rules)]
    with World(tmp_path, "localhost:1") as world:
        coordinator = world.coordinator(0, *NEW, "--log-level=error", *protected)
        async with grpc.aio.insecure_channel(world.target, options=client_options()) as channel:
            await refuse(channel, flood)
            before_mb = rss_mb(coordinator.pid)
            for _ in range(flood.calls):
                await refuse(channel, flood)
            grown_mb = rss_mb(coordinator.pid) - before_mb
    print(f"{before_mb:.0f} MiB, then {grown_mb:.0f} more")

    assert grown_mb < GROWN_MB_MAX


async def test_messages_that_are_not_read_stay_with_their_sender(tmp_path: Path) -> None:
    """A call may send more than its handler reads: the coordinator does not take it."""
    with World(tmp_path, "localhost:1") as world:
        coordinator = world.coordinator(0, *NEW, "--log-level=error")
        async with grpc.aio.insecure_channel(world.target, options=client_options()) as channel:
            make: Any = channel.stream_stream("/rallypoint.v1.EventService/WatchEvents")
            calls = [make(timeout=LIMIT_S) for _ in range(WATCHES)]
            await asyncio.gather(*(call.write(b"") for call in calls))
            await asyncio.gather(*(call.initial_metadata() for call in calls))
            before_mb = rss_mb(coordinator.pid)
            async with asyncio.TaskGroup() as tasks:
                writes = [tasks.create_task(call.write(MORE)) for call in calls]
                for _ in range(LATER_CALLS):  # of the same connection
                    await refuse(channel, FLOODS["read_that_is_decoded"])
                grown_mb = rss_mb(coordinator.pid) - before_mb
                for write in writes:
                    write.cancel()
    print(f"{before_mb:.0f} MiB, then {grown_mb:.0f} more")

    assert grown_mb < GROWN_MB_MAX
