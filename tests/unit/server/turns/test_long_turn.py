"""A turn that has much to do takes effect in parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.server.coordinator import TURN_BYTES_MAX, TURN_MS_MAX
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import BarrierArrived
from rallypoint.server.core.model.barrier import BarrierKey, Expected
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.reads.replay import JournalRecord
from rallypoint.server.core.reads.weights import weight_of
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.stepper import Stepper
from support.core.barriers import named
from support.core.shell import Shell, running_shell

SLOW_MS = TURN_MS_MAX // 2


def watch(monkeypatch: pytest.MonkeyPatch, shell: Shell, kinds: Sequence[type]) -> list[str]:
    """Make inputs of these kinds slow; return the order of their steps and of what is sent."""
    order: list[str] = []
    real_step: Callable[..., Any] = Stepper.step
    real_expire: Callable[..., None] = Stepper.expire
    real_send = shell.outboxes.carry_out

    def slow_step(self: Stepper, input: inputs.Input, *rest: Any) -> Any:
        if isinstance(input, inputs.Stalled):
            order.append("stalled")
        if isinstance(input, tuple(kinds)):
            order.append("step")
            time.sleep(SLOW_MS / 1000)  # the core is busy: nothing is awaited
        return real_step(self, input, *rest)

    def expire(self: Stepper, *args: Any) -> None:
        order.append("time")
        real_expire(self, *args)

    def send(*args: Any) -> Any:
        order.append("send")
        return real_send(*args)

    monkeypatch.setattr(Stepper, "step", slow_step)
    monkeypatch.setattr(Stepper, "expire", expire)
    monkeypatch.setattr(shell.outboxes, "carry_out", send)
    return order


async def test_effects_do_not_wait_for_all_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first inputs decided is sent while the last ones still wait; none is lost."""
    async with running_shell() as shell:
        peers = [await shell.join(f"job{number}", number) for number in range(1, 9)]
        order = watch(monkeypatch, shell, [inputs.Succeeded])
        for peer in peers:
            await shell.coordinator.submit(inputs.Succeeded(peer.next_sender(), 1))
        await shell.settle()

        assert len(peers) == order.count("step")
        assert order.index("send") < len(order) - 1 - order[::-1].index("step")
        jobs = [shell.job(f"job{number}") for number in range(1, 9)]
        assert [Phase.CLOSED] * 8 == [job.phase for job in jobs if job is not None]


async def test_what_has_arrived_counts_before_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines wait for the inputs that a turn has no time for."""
    async with running_shell() as shell:
        peers = [await shell.join(f"job{number}", number) for number in range(1, 7)]
        order = watch(monkeypatch, shell, [inputs.Succeeded])
        for peer in peers:
            await shell.coordinator.submit(inputs.Succeeded(peer.next_sender(), 1))
        await shell.settle()

        assert order.index("time") > len(order) - 1 - order[::-1].index("step")


async def test_many_deadlines_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """When many leases end at once, agents are heard and answered before the last one is judged."""
    async with running_shell() as shell:
        peers = [await shell.join(f"job{number}", number) for number in range(1, 9)]
        order = watch(monkeypatch, shell, [inputs.TimePassed])
        for peer in peers:
            shell.state.deadlines.set((DeadlineKind.LEASE, peer.identity.session), 0)
        while order.count("step") < len(peers):
            await shell.settle()

        first, second, *_ = [at for at, what in enumerate(order) if what == "time"]
        assert first < second < len(order) - 1 - order[::-1].index("step")


async def test_batch_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """So large requests of one job do not hold up all others while they are synced."""
    names = tuple(named(f"{number:0250}") for number in range(1_024))
    batches: list[Sequence[JournalRecord]] = []
    async with running_shell() as shell:
        await shell.join("job1", 1)
        real_append = shell.journal.append

        async def append(records: Sequence[JournalRecord], now_ms: int) -> None:
            batches.append(records)
            await real_append(records, now_ms)

        monkeypatch.setattr(shell.journal, "append", append)
        claim = inputs.Claim(JobId("job1"), 1, 1, "t", is_signed=True)
        async with asyncio.TaskGroup() as asking:
            for number in range(8):
                key = BarrierKey(claim.job_id, 1, 1, f"b{number}")
                arrive = inputs.Arrive(
                    claim, key, names[0], Expected(len(names), names), 60_000, f"r{number}"
                )
                asking.create_task(shell.coordinator.ask(arrive, lambda state, now_ms: None))

    opened = [sum(isinstance(one, BarrierArrived) for one in batch) for batch in batches]
    assert sum(opened) == 8
    weights = [sum(map(weight_of, batch)) for batch in batches]
    assert max(weights) < 2 * TURN_BYTES_MAX


async def test_stall_between_two_parts_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped before the rest of its inputs calls no node lost."""
    async with running_shell() as shell:
        peers = [await shell.join(f"job{number}", number) for number in range(1, 7)]
        order = watch(monkeypatch, shell, [inputs.Succeeded])
        real_ns, jumps = time.monotonic_ns, [0]  # the clock jumps while nothing runs

        def jump() -> None:
            jumps[0] = 9_000_000_000

        def send(*args: Any) -> Any:
            order.append("send")
            asyncio.get_running_loop().call_soon(jump)
            return ()

        monkeypatch.setattr(shell.outboxes, "carry_out", send)
        monkeypatch.setattr(
            "rallypoint.server.clock.time",
            SimpleNamespace(monotonic_ns=lambda: real_ns() + jumps[0], time_ns=time.time_ns),
        )
        for peer in peers[1:]:
            await shell.coordinator.submit(inputs.Succeeded(peer.next_sender(), 1))
        await shell.settle()

        assert jumps != [0]
        assert "stalled" in order
        lost = [shell.job(f"job{number}") for number in range(1, 7)]
        assert [()] * 6 == [job.lost for job in lost if job is not None]
