"""Reads hold up no decision, however many readers ask at once."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from rallypoint.server.coordinator import LATE_MS, TURN_MS_MAX, CoordinatorEnded
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State
from rallypoint.server.stepper import Stepper
from support.core.shell import running_shell

READS = 3 * LATE_MS // TURN_MS_MAX


def burn(state: State, now_ms: int) -> None:
    """Answer a reader with as much work as a turn has time for."""
    ends_ns = time.thread_time_ns() + TURN_MS_MAX * 1_000_000
    while time.thread_time_ns() < ends_ns:
        pass


async def test_a_decision_waits_for_one_part_of_the_reads() -> None:
    """A report that arrives while readers are answered is decided before the last of them."""
    async with asyncio.timeout(60), running_shell() as shell:
        peer = await shell.join("job", 1)
        order: list[str] = []

        def answer(state: State, now_ms: int) -> None:
            burn(state, now_ms)
            order.append(state.jobs[peer.identity.job_id].phase.value)

        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(shell.coordinator.read(answer)) for _ in range(READS)]
            await readers[0]
            await shell.coordinator.submit(inputs.Succeeded(peer.next_sender(), 1))

        assert READS == len(order)
        assert order[3] == Phase.CLOSED.value


async def test_a_deadline_waits_for_one_part_of_the_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that has ended is judged before the last reader has its answer."""
    async with asyncio.timeout(60), running_shell() as shell:
        peer = await shell.join("job", 1)
        seen: list[bool] = []
        real_expire = Stepper.expire
        expired: list[int] = []

        def expire(self: Stepper, *args: object) -> None:
            expired.append(len(seen))
            real_expire(self, *args)  # type: ignore[arg-type]  # passed on

        def answer(state: State, now_ms: int) -> None:
            burn(state, now_ms)
            seen.append(True)

        monkeypatch.setattr(Stepper, "expire", expire)
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(shell.coordinator.read(answer)) for _ in range(READS)]
            await readers[0]
            shell.state.deadlines.set((DeadlineKind.LEASE, peer.identity.session), 0)
            expired.clear()

        assert expired[0] < READS - 1


@pytest.mark.parametrize(("reads", "is_busy"), [(1, True), (READS, True), (1, False)])
async def test_long_read_is_no_stall_but_a_stop_is(
    monkeypatch: pytest.MonkeyPatch, *, reads: int, is_busy: bool
) -> None:
    """Reads that take seconds of processor time are none; a process that was stopped in one is."""
    passed_ns = {"wall": 0, "processor": 0}
    real_ns = time.monotonic_ns

    def answer(state: State, now_ms: int) -> None:
        passed_ns["wall"] += 2_000_000_000 // reads
        passed_ns["processor"] += 2_000_000_000 // reads * is_busy

    monkeypatch.setattr(
        "rallypoint.server.clock.time",
        SimpleNamespace(monotonic_ns=lambda: real_ns() + passed_ns["wall"], time_ns=time.time_ns),
    )
    monkeypatch.setattr(
        "rallypoint.server.coordinator.time",
        SimpleNamespace(thread_time_ns=lambda: passed_ns["processor"]),
    )
    async with asyncio.timeout(60), running_shell() as shell:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(reads):
                tasks.create_task(shell.coordinator.read(answer))
        await shell.settle()

        assert is_busy == (shell.clock.held_ms < 2_000)


async def test_readers_that_no_turn_has_answered_learn_of_the_end() -> None:
    """A caller that waits for the next turn when the coordinator ends gets an error."""
    async with asyncio.timeout(60), running_shell() as shell:
        readers = [
            asyncio.ensure_future(shell.coordinator.read(burn))  # noqa: TID251  # awaited below
            for _ in range(READS)
        ]
        await readers[0]
        await shell.end()
        found = await asyncio.gather(*readers, return_exceptions=True)

    assert found[0] is None
    assert any(isinstance(one, CoordinatorEnded) for one in found)
    assert all(one is None or isinstance(one, CoordinatorEnded) for one in found)
