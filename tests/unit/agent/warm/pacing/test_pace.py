"""A standby is stopped most of the time while workers use the processors."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import pytest
from structlog.testing import capture_logs

from rallypoint.agent.helper.host import HostClosed
from rallypoint.agent.warm.pacing import pace as module
from rallypoint.agent.warm.pacing.pace import Pace
from rallypoint.agent.warm.pacing.usage import Usage
from rallypoint.agent.warm.standby import Standby

LIMIT_S = 30.0


class Host:
    """A helper that notes signals."""

    def __init__(self) -> None:
        self.signals: list[signal.Signals] = []
        self.changed = asyncio.Event()
        self.is_closed = False

    def signal(self, signum: signal.Signals, ids: Collection[int]) -> None:
        """Note a signal."""
        assert tuple(ids) == (-4,)
        self.signals.append(signum)
        self.changed.set()
        if self.is_closed:
            raise HostClosed

    async def await_signals(self, count: int) -> None:
        """Return once so many have come."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.signals) < count:
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Stopped:
    """A standby, as far as its pace knows it."""

    host: Host
    id: int = -4
    local_rank: int = 0
    pid: int = 4
    exited: None = None


@pytest.fixture(autouse=True)
def eased(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let time pass quickly, but for free runs; return the pids that got their priority back."""
    pids: list[int] = []

    async def end_low_priority(pid: int) -> None:
        pids.append(pid)

    monkeypatch.setattr(module, "end_low_priority", end_low_priority)
    monkeypatch.setattr(module, "CREDIT_S", 0.0)
    monkeypatch.setattr(module, "PERIOD_S", 0.02)
    monkeypatch.setattr(module, "BURST_S", 0.001)
    monkeypatch.setattr(module, "FREE_S", 3600.0)
    return pids


def usages(*, is_busy: bool) -> Iterator[Usage]:
    """Yield looks at a machine with two processors, a second apart."""
    at_s = 0.0
    while True:
        yield Usage(at_s, 2, 0.0 if is_busy else 2 * at_s, at_s)
        at_s += 1.0


@asynccontextmanager
async def keep(
    host: Host, read: Callable[[int], Usage], stopped: list[float]
) -> AsyncIterator[asyncio.Task[None]]:
    """Keep the pace of a standby for a while."""
    async with asyncio.TaskGroup() as tasks:
        pace = Pace(lambda: 1, tasks, read)
        task = pace.begin(cast("Standby", Stopped(host)), stopped.append)
        yield task
        task.cancel()


async def give_turns() -> None:
    """Let what would follow at once have its turn."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_standby_runs_in_bursts_beside_busy_workers(eased: list[int]) -> None:
    """It is stopped and continued in turn, and the time that it is stopped is known."""
    host, stopped, looks = Host(), list[float](), usages(is_busy=True)
    async with keep(host, lambda root: next(looks), stopped):
        await host.await_signals(6)

    assert host.signals[:6] == [signal.SIGSTOP, signal.SIGCONT] * 3
    assert len(stopped) >= 2
    assert all(seconds >= 0.018 for seconds in stopped)
    assert set(eased) == {4}  # with the least priority it would never run


async def test_standby_runs_while_there_is_room(eased: list[int]) -> None:
    """It is stopped for a look only, and has the least priority."""
    host, looks = Host(), usages(is_busy=False)
    async with keep(host, lambda root: next(looks), []):
        await host.await_signals(2)
        await give_turns()

        assert host.signals == [signal.SIGSTOP, signal.SIGCONT]
        assert eased == []


async def test_standby_that_runs_is_not_continued_at_the_end() -> None:
    """A user may have stopped it since."""
    host, looks = Host(), usages(is_busy=False)
    async with keep(host, lambda root: next(looks), []):
        await host.await_signals(2)
        await give_turns()

    assert host.signals == [signal.SIGSTOP, signal.SIGCONT]


async def test_standby_that_takes_long_gets_its_share(
    eased: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs may use the processors for ever."""
    monkeypatch.setattr(module, "LOW_LIMIT_S", 0.0)
    host, looks = Host(), usages(is_busy=False)
    with capture_logs() as logs:
        async with keep(host, lambda root: next(looks), []):
            await host.await_signals(2)

    assert eased == [4]
    assert [line["event"] for line in logs] == ["standby_delayed"]


@pytest.mark.parametrize("error", [ValueError("a word, not a number"), OSError("no such file")])
async def test_kernel_that_writes_something_else_stops_nothing_for_long(error: Exception) -> None:
    """A standby is made as on an idle machine."""

    def fail(root: int) -> Usage:
        raise error

    host = Host()
    async with keep(host, fail, []):
        await host.await_signals(2)
        await give_turns()

        assert host.signals == [signal.SIGSTOP, signal.SIGCONT]


async def test_standby_runs_afterwards() -> None:
    """One that is stopped is continued."""
    host, looks = Host(), usages(is_busy=True)
    async with keep(host, lambda root: next(looks), []):
        await host.await_signals(1)

    assert host.signals == [signal.SIGSTOP, signal.SIGCONT]


async def test_dead_helper_ends_nothing_else() -> None:
    """Its standbys have died with it."""
    host, looks = Host(), usages(is_busy=True)
    host.is_closed = True
    async with keep(host, lambda root: next(looks), []) as task:
        await host.await_signals(4)

        assert not task.done()
