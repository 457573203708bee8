"""Exceptions of the agent's code reach one function; those of libraries are only logged."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rallypoint.agent.containment import GuardedTasks, describe_error, handle_errors
from rallypoint.agent.torchelastic.timers import timer_file

FailedWith = list[BaseException]


async def raise_later(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def test_failed_task_does_not_cancel_the_others() -> None:
    """Its exception is reported, and the other tasks run to their end."""
    failed: FailedWith = []
    error, finished = ValueError("bad"), asyncio.Event()

    def fail(error: BaseException) -> None:
        failed.append(error)
        finished.set()

    async with GuardedTasks(fail) as tasks:
        other = tasks.create_task(finished.wait())
        tasks.create_task(raise_later(error))

    assert failed == [error]
    assert other.result() is True


async def test_cancelled_task_has_not_failed() -> None:
    """Nor has one that was cancelled before its first step."""
    failed: FailedWith = []
    async with GuardedTasks(failed.append) as tasks:
        tasks.create_task(raise_later(ValueError("bad"))).cancel()

    assert failed == []


async def test_all_tasks_can_be_cancelled() -> None:
    """The group ends although a task waits for something that never comes."""
    failed: FailedWith = []
    async with asyncio.timeout(10), GuardedTasks(failed.append) as tasks:
        tasks.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        tasks.cancel()

    assert failed == []


async def fail_in_callback(callback: Callable[[], object]) -> FailedWith:
    loop = asyncio.get_running_loop()
    failed: FailedWith = []
    handle_errors(loop, failed.append)
    loop.call_soon(callback)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return failed


async def test_exception_in_a_callback_of_the_agent() -> None:
    """It is reported, however deep in a library it was raised."""
    folders: queue.Queue[Path] = queue.Queue()
    (error,) = await fail_in_callback(partial(timer_file, {}, folders.get_nowait))

    assert isinstance(error, queue.Empty)


async def test_exception_that_another_thread_reports() -> None:
    """As a collection of garbage may do. The agent ends in the thread of its loop."""
    loop, threads = asyncio.get_running_loop(), list[int]()
    loop.set_debug(True)  # it checks who calls
    reported = asyncio.Event()

    def fail(_: BaseException) -> None:
        threads.append(threading.get_ident())
        reported.set()

    handle_errors(loop, fail)
    folders: queue.Queue[Path] = queue.Queue()
    try:
        timer_file({}, folders.get_nowait)
    except queue.Empty as error:
        await asyncio.to_thread(loop.call_exception_handler, {"exception": error})
    async with asyncio.timeout(10):
        await reported.wait()

    assert threads == [threading.get_ident()]


async def test_exception_in_a_callback_of_a_library(capsys: pytest.CaptureFixture[str]) -> None:
    """It is logged, and ends nothing."""
    numbers: queue.Queue[None] = queue.Queue()
    failed = await fail_in_callback(numbers.get_nowait)

    assert failed == []
    assert "library_failed" in capsys.readouterr().out


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("two\nlines\0\udce9"), "ValueError: two lines??"),
        (KeyError(7), "KeyError: 7"),
        (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
        (ValueError("x" * 1_000), f"ValueError: {'x' * 288}"),
    ],
)
def test_description_is_one_printable_line(error: Exception, expected: str) -> None:
    """Whatever the text holds."""
    assert describe_error(error) == expected


def test_description_of_an_exception_without_text() -> None:
    """An exception whose text cannot be computed has a description too."""
    assert "Unprintable" in describe_error(Unprintable())
