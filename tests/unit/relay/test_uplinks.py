"""What a relay logs of coordinators that it does not reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from rallypoint.relay import uplinks
from rallypoint.relay.uplink import Uplink
from rallypoint.relay.uplinks import Uplinks
from rallypoint.wire.access import PLAIN
from rallypoint.wire.credentials import Credentials
from support.machines.resolver import install

LIMIT_S = 10
ATTEMPTS = 9


@pytest.fixture
def logged() -> Iterator[list[dict[str, object]]]:
    with capture_logs() as made:
        yield made  # type: ignore[misc]


async def test_each_problem_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, object]]
) -> None:
    """Although two coordinators fail in turn, each for another reason."""
    tried, enough = list[str](), asyncio.Event()

    async def run(self: Uplink) -> None:
        tried.append(self.target)
        if len(tried) == ATTEMPTS:
            enough.set()
        self._end(f"cannot connect to {self.target}")

    monkeypatch.setattr(Uplink, "run", run)
    monkeypatch.setattr(uplinks, "BACKOFF_S_MIN", 0.0)
    made = Uplinks("127.0.0.1:1,127.0.0.1:2", Credentials(PLAIN))
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.run())
        await enough.wait()
        running.cancel()
    named = [one["coordinator"] for one in logged if one["event"] == "coordinator_not_reached"]

    assert ["127.0.0.1:1", "127.0.0.1:2"] == named


async def test_name_server_that_is_silent_is_one_line(
    monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, object]]
) -> None:
    """However long it takes: each attempt has the same reason."""
    tried, enough = list[str](), asyncio.Event()
    resolver, run = install(monkeypatch), Uplink.run

    async def note(self: Uplink) -> None:
        await run(self)
        tried.append(self.target)
        if len(tried) == 3:
            enough.set()

    monkeypatch.setattr(Uplink, "run", note)
    resolver.hold("head")
    made = Uplinks("head:7", Credentials(PLAIN))
    try:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(made.run())
            await enough.wait()
            running.cancel()
    finally:
        resolver.release_all()
    whys = [one["why"] for one in logged if one["event"] == "coordinator_not_reached"]

    assert [
        "head is not resolved yet: the name server is slow or silent; see /etc/resolv.conf"
    ] == whys
