"""The thread that reads a worker's stream may run late."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from rallypoint.agent.output.streams import LOOK_S, Pump

LIMIT_S = 10


async def test_tail_has_what_was_written_although_its_thread_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for bytes that nothing has read yet, also if a child holds the stream."""
    is_due, keep = threading.Event(), Pump._keep

    def keep_late(pump: Pump, data: bytes) -> None:
        is_due.wait(LIMIT_S)
        keep(pump, data)

    monkeypatch.setattr(Pump, "_keep", keep_late)
    read_fd, write_fd = os.pipe()
    stream = Pump(read_fd, None, None, asyncio.get_running_loop())
    os.write(write_fd, b"last words\n")
    async with asyncio.TaskGroup() as tasks:
        waits = tasks.create_task(stream.catch_up(LIMIT_S))
        for _ in range(3):
            await asyncio.sleep(LOOK_S)
        assert not waits.done() and stream.tail() == ""
        is_due.set()

    assert stream.tail() == "last words\n"
    assert not stream.has_ended()
    os.close(write_fd)
    await stream.wait_end(LIMIT_S)
    assert stream.has_ended()


async def test_limit_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that a file system holds up delays a report only for so long."""
    is_due = threading.Event()
    monkeypatch.setattr(Pump, "_keep", lambda pump, data: is_due.wait(LIMIT_S))
    read_fd, write_fd = os.pipe()
    stream = Pump(read_fd, None, None, asyncio.get_running_loop())
    os.write(write_fd, b"never read\n")
    await stream.catch_up(2 * LOOK_S)

    assert stream.tail() == ""
    is_due.set()
    os.close(write_fd)
    await stream.wait_end(LIMIT_S)
