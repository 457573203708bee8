"""Turns of a coordinator: what waits for them, and what does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.memory.weights import weight_of
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import BarrierArrived
from rallypoint.server.core.model.barrier import BarrierKey, Expected
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State
from rallypoint.server.shell import inbox as module
from rallypoint.server.shell.coordinator import (
    LATE_MS,
    TURN_BYTES_MAX,
    TURN_MS_MAX,
    CoordinatorEnded,
)
from rallypoint.server.shell.inbox import Inbox, Item, Query, dismiss
from rallypoint.server.shell.stepper import Stepper
from support.core.barriers import named
from support.core.shell import Shell, running_shell

# --- Inputs of agents wait for each other after a turn; callers wait for nothing ---

BROKEN = inputs.JobBroken(JobId("job"), "an input like any other")
LIMIT_S = 30.0
LONG_S = 3600.0


def query() -> Query:
    """Return a read that a caller waits for."""
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    return Query(None, lambda state, now_ms: None, future)


async def give_turns() -> None:
    """Let what would follow at once have its turn."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_first_input_after_a_pause_waits_for_no_other() -> None:
    """A failure on a quiet machine is handled at once."""
    inbox = Inbox()
    await inbox.put(BROKEN)

    assert await inbox.get(LIMIT_S) == [BROKEN]


async def test_inputs_right_after_a_turn_share_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many come until it begins."""
    monkeypatch.setattr(module, "GATHER_S", 0.5)
    inbox = Inbox()
    inbox.note_turn()
    await inbox.put(BROKEN)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(inbox.get(None))
        await asyncio.sleep(0)
        await inbox.put(BROKEN)

    assert getting.result() == [BROKEN, BROKEN]


@pytest.mark.parametrize("is_first", [True, False])
async def test_caller_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """It gets its answer although agents have reported just now."""
    monkeypatch.setattr(module, "GATHER_S", LONG_S)
    inbox, one = Inbox(), query()
    inbox.note_turn()
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(inbox.get(None))
        items: list[Item] = [one, BROKEN] if is_first else [BROKEN, one]
        for item in items:
            await inbox.put(item)
            await asyncio.sleep(0)

    assert items[0] in getting.result()
    assert one in getting.result()


async def test_agents_wait_as_long_as_they_have_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn begins before."""
    monkeypatch.setattr(module, "GATHER_S", LONG_S)
    inbox = Inbox()
    inbox.note_turn()
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(inbox.get(None))
        await inbox.put(BROKEN)
        await give_turns()

        assert not getting.done()
        getting.cancel()


async def test_deadline_gets_a_turn_without_inputs() -> None:
    """Nothing has come in time."""
    assert await Inbox().get(0.0) == []


async def test_callers_are_let_go_at_the_end() -> None:
    """Those whose query waits, and those whose turn did not end."""
    inbox, waiting, taken = Inbox(), query(), query()
    await inbox.put(BROKEN)
    await inbox.put(waiting)
    inbox.dismiss(LookupError("it has ended"))
    dismiss((taken,), LookupError("it has ended"))

    for one in (waiting, taken):
        with pytest.raises(LookupError):
            await one.future
    assert await inbox.get(0.0) == []


async def test_caller_that_came_right_after_an_agent_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are there before the turn is awake."""
    monkeypatch.setattr(module, "GATHER_S", LONG_S)
    inbox, one = Inbox(), query()
    inbox.note_turn()
    await inbox.put(BROKEN)
    await inbox.put(one)

    async with asyncio.timeout(LIMIT_S):
        assert await inbox.get(None) == [BROKEN, one]


# --- A turn that has much to do takes effect in parts ---

SLOW_MS = TURN_MS_MAX // 2


def watch(monkeypatch: pytest.MonkeyPatch, shell: Shell, kinds: Sequence[type]) -> list[str]:
    """Make inputs of these kinds slow; return the order of their steps and of what is sent."""
    order: list[str] = []
    real_step: Callable[..., Any] = Stepper.step
    real_expire: Callable[..., None] = Stepper.expire
    real_send = shell.listeners.carry_out

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
    monkeypatch.setattr(shell.listeners, "carry_out", send)
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

        monkeypatch.setattr(shell.listeners, "carry_out", send)
        monkeypatch.setattr(
            "rallypoint.server.shell.clock.time",
            SimpleNamespace(monotonic_ns=lambda: real_ns() + jumps[0], time_ns=time.time_ns),
        )
        for peer in peers[1:]:
            await shell.coordinator.submit(inputs.Succeeded(peer.next_sender(), 1))
        await shell.settle()

        assert jumps != [0]
        assert "stalled" in order
        lost = [shell.job(f"job{number}") for number in range(1, 7)]
        assert [()] * 6 == [job.lost for job in lost if job is not None]


# --- Reads hold up no decision, however many readers ask at once ---

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
        "rallypoint.server.shell.clock.time",
        SimpleNamespace(monotonic_ns=lambda: real_ns() + passed_ns["wall"], time_ns=time.time_ns),
    )
    monkeypatch.setattr(
        "rallypoint.server.shell.coordinator.time",
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
