"""The agent's end of the socket to its helper."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rallypoint.agent.helper.events import Exited, HelperLost, HostEvent, SpawnRequest, Swept
from rallypoint.agent.helper.host import HostClosed, WorkerHost
from support.processes.processes import Conversation, Witness
from support.processes.threads import forbid_threads


async def test_failing_handler_loses_no_event() -> None:
    """Of events that arrive at once, those after one whose handler raises are delivered too."""
    host = WorkerHost.launch()
    for number in range(3):
        host.spawn(
            SpawnRequest(
                worker_id=number, argv=("true",), env={}, cwd="/", stdout_fd=2, stderr_fd=2
            )
        )
    events: list[HostEvent] = []
    failed: list[dict[str, Any]] = []
    ended = asyncio.Event()

    def handle(event: HostEvent) -> None:
        events.append(event)
        if sum(isinstance(event, Exited) for event in events) == 3:
            ended.set()
        if len(events) == 1:
            raise ValueError("planted")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    host.attach(handle)
    async with asyncio.timeout(30):
        await ended.wait()
    await host.close()

    # A helper that starts may also find what the dead agents of other tests have left behind.
    assert len([event for event in events if not isinstance(event, Swept)]) == 6
    assert [str(context["exception"]) for context in failed] == ["planted"]


async def test_refused_request_says_why() -> None:
    """A worker that cannot start after its helper has died has a reason that people can read."""
    host = WorkerHost.launch()
    host.attach(lambda event: None)
    await host.close()

    with pytest.raises(HostClosed, match="the helper process has ended"):
        host.signal(15)


@pytest.mark.parametrize("dies", [False, True])
async def test_ending_needs_no_thread(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    """Workers and helper end, or are reported, where no thread can be started any more."""
    host = WorkerHost.launch()
    conversation = Conversation(host)
    pid = await conversation.start("sleep", "1000")
    witness = Witness()
    witness.watch(pid, host.pid)
    forbid_threads(monkeypatch)
    if dies:
        host.kill()
        assert await conversation.next() == HelperLost(host.pid)
        assert isinstance(await conversation.next(), Exited)
    await host.close()

    assert witness.await_deaths() == []
    witness.close()
