"""What takes long for a large state leaves the event loop free, where leases are renewed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rallypoint.server.core.memory.restore import restore
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.state.holding import Holding, Together
from rallypoint.server.journal import compaction
from rallypoint.server.shell import beginning, coordinator
from support.core.shell import running_shell
from support.journal.recording import RecordingJournal

WAIT_S = 10.0


def hold(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[bool]:
    """Let a function wait for the event loop; return for each call whether the loop went on."""
    went_on: list[bool] = []
    genuine, loop = getattr(module, name), asyncio.get_running_loop()

    def held(*args: Any, **facts: Any) -> Any:
        passed = threading.Event()
        loop.call_soon_threadsafe(passed.set)
        went_on.append(passed.wait(WAIT_S if not went_on else 0.1))
        return genuine(*args, **facts)

    monkeypatch.setattr(module, name, held)
    return went_on


@pytest.mark.parametrize("name", ["replay", "restore"])
async def test_loop_goes_on_while_a_journal_is_replayed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """And while the state is made of it. A single record may have the keys of a whole job."""
    journal = RecordingJournal("c" * 32)
    await journal.append([EpochRaised(8)], 0)
    went_on = hold(monkeypatch, beginning, name)
    async with asyncio.timeout(60):
        begun = await beginning.begin(journal, Timing(), listens=True)

    assert [True] == went_on
    assert begun.state.epoch > 8


async def test_loop_goes_on_while_a_snapshot_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """No decision is taken meanwhile, so the snapshot shows one moment."""
    monkeypatch.setattr(coordinator, "INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(compaction.Compaction, "is_due", lambda *_: True)
    async with asyncio.timeout(60), running_shell() as shell:
        peer = await shell.join("job", 1)
        went_on = hold(monkeypatch, coordinator, "snapshot")
        await shell.coordinator.submit(inputs.Cordon(peer.identity.job_id, NodeName("n1"), "test"))
        await shell.settle()

    assert went_on and all(went_on)


async def test_load_that_is_cancelled_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a thread still restores the state: that ends later."""
    together, journal = Together(), RecordingJournal("c" * 32)
    await journal.append([EpochRaised(1)], 0)
    begun, let, ended = threading.Event(), threading.Event(), threading.Event()

    def held(*args: Any, **facts: Any) -> Any:
        begun.set()
        let.wait(WAIT_S)
        restored = restore(*args, **facts)
        ended.set()
        return restored

    monkeypatch.setattr(beginning, "restore", held)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        load = tasks.create_task(
            beginning.begin(journal, Timing(), listens=True, together=together)
        )
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        load.cancel()
    let.set()

    assert await asyncio.to_thread(ended.wait, WAIT_S)
    assert [] == together.parts


@pytest.mark.parametrize("records", [0, 1])
async def test_state_counts_once_it_has_begun(records: int) -> None:
    """With what the others of its process hold."""
    together, journal = Together([Holding(jobs=2)]), RecordingJournal("c" * 32)
    await journal.append([EpochRaised(1)] * records, 0)
    begun = await beginning.begin(journal, Timing(), listens=True, together=together)
    begun.state.holding.jobs = 1

    assert 3 == begun.state.together.jobs == together.jobs


async def test_state_that_cannot_begin_counts_for_nothing() -> None:
    """Another coordinator has the shard: its jobs do not use up the limits of this process."""
    together = Together()

    class Lost(RecordingJournal):
        async def append(self, *_: Any) -> None:
            raise OSError("the shard has another owner")

    with pytest.raises(OSError, match="another owner"):
        await beginning.begin(Lost("c" * 32), Timing(), listens=True, together=together)

    assert [] == together.parts
