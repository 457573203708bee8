"""When the coordinator's loop ends, everyone who waits for it learns that at once."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.shell import inbox
from rallypoint.server.shell.coordinator import CoordinatorEnded
from support.core.shell import Peer, Shell

JOB, OTHER = JobId("job"), JobId("other")
CODE_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
LIMIT_S = 5


async def fail(shell: Shell, peer: Peer) -> asyncio.Task[None]:
    """Run the shell until a decision cannot be journalled."""
    task = asyncio.ensure_future(shell.coordinator.run())  # noqa: TID251  # it ends here
    await peer.hello()
    await shell.settle()
    shell.journal.is_full = True
    await peer.start()
    cordon = inputs.Cordon(JOB, NodeName(peer.identity.name), "bad disk")
    await shell.coordinator.submit(cordon)
    await asyncio.wait((task,), timeout=LIMIT_S)
    return task


async def test_streams_and_watchers_learn_of_the_end() -> None:
    """The open streams end with UNAVAILABLE, and so does every new one."""
    shell = Shell()
    peer = shell.peer(JOB, 1)
    with shell.watchers.of_job(JobId(OTHER), "host") as watched:
        changed = watched.changed
        task = await fail(shell, peer)
    late = shell.outboxes.open(shell.peer(OTHER, 2).identity.session, 1, JobId(OTHER))

    assert isinstance(task.exception(), JournalFailed)
    assert changed.is_set()
    for outbox in (peer.outbox, late):
        assert outbox.end is not None and outbox.wake.is_set()
        assert CODE_UNAVAILABLE == outbox.end.code


async def test_nothing_is_accepted_after_the_end() -> None:
    """A heartbeat either, so that it is not acknowledged."""
    shell = Shell()
    peer = shell.peer(JOB, 1)
    await fail(shell, peer)

    with pytest.raises(CoordinatorEnded):
        shell.coordinator.hear(inputs.Heartbeat(peer.sender()))
    with pytest.raises(CoordinatorEnded):
        await shell.coordinator.submit(inputs.Broken(peer.sender()))
    with pytest.raises(CoordinatorEnded):
        await shell.coordinator.read(lambda state, now_ms: None)


async def test_who_waits_for_room_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait while the inbox is full."""
    monkeypatch.setattr(inbox, "INBOX_MAX", 2)
    shell = Shell()
    shell.journal.is_full = True
    peer = shell.peer(JOB, 1)
    await peer.hello()
    broken = inputs.Broken(peer.sender())
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        accepted = tasks.create_task(ended_by(shell, broken))
        waiting = [tasks.create_task(ended_by(shell, broken)) for _ in range(9)]
        reading = tasks.create_task(ended_by(shell, None))
        await asyncio.sleep(0)  # they run until the inbox is full
        assert shell.coordinator._inbox._items.full()
        with pytest.raises(JournalFailed):
            await shell.coordinator.run()

    assert not accepted.result()
    assert [True] * 9 == [task.result() for task in waiting]
    assert reading.result()


async def ended_by(shell: Shell, input: inputs.Input | None) -> bool:
    """Submit an input, or read; return whether the coordinator had ended by then."""
    try:
        if input is not None:
            await shell.coordinator.submit(input)
        else:
            await shell.coordinator.read(lambda state, now_ms: None)
    except CoordinatorEnded:
        return True
    return False
