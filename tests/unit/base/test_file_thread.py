"""File operations run in order, in a thread that nothing has to wait for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading

import pytest

from rallypoint.base import file_thread
from rallypoint.base.file_thread import FileThread

LIMIT_S = 10


async def test_result_and_exception_arrive() -> None:
    """What a call returns or raises reaches the caller, and the thread is another one."""
    files = FileThread("files")

    assert await files.run("x", threading.get_ident) != threading.get_ident()
    with pytest.raises(FileNotFoundError):
        await files.run("x", lambda: open("/no/such/file"))


async def test_calls_run_in_order() -> None:
    """A call begins when the one before it has returned."""
    files = FileThread("files")
    gate = threading.Event()
    order: list[int] = []

    def first() -> None:
        gate.wait(LIMIT_S)
        order.append(1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(files.run("x", first))
        tasks.create_task(files.run("x", lambda: order.append(2)))
        await asyncio.sleep(0)
        files.submit(lambda: order.append(3))
        gate.set()

    assert files.flush(LIMIT_S)
    assert order == [1, 2, 3]


async def test_loop_runs_while_a_call_blocks() -> None:
    """A caller that gives up gets a TimeoutError, and what the call opened is undone later."""
    files = FileThread("files")
    gate, undone = threading.Event(), threading.Event()
    results: list[bool] = []

    def undo(result: bool) -> None:
        results.append(result)
        undone.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await files.run("x", lambda: gate.wait(LIMIT_S), undo)
    assert not files.flush(0)
    gate.set()
    await asyncio.to_thread(undone.wait, LIMIT_S)

    assert results == [True]


async def test_cancelled_call_is_not_made() -> None:
    """A call that nothing waits for any more, and that has not begun, is left out."""
    files = FileThread("files")
    gate = threading.Event()
    made: list[int] = []

    def block() -> None:
        gate.wait(LIMIT_S)

    files.submit(block)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await files.run("x", lambda: made.append(1))
    gate.set()

    assert files.flush(LIMIT_S)
    assert made == []


async def test_calls_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that stands still does not collect calls without end."""
    monkeypatch.setattr(file_thread, "CALLS_MAX", 2)
    files = FileThread("files")
    gate, began = threading.Event(), threading.Event()

    def block() -> None:
        began.set()
        gate.wait(LIMIT_S)

    files.submit(block)
    began.wait(LIMIT_S)
    for _ in range(2):
        files.submit(gate.set)
    with pytest.raises(OSError, match="2 file operations wait"):
        await files.run("x", gate.set)
    gate.set()

    assert files.flush(LIMIT_S)


async def test_stalled_call_is_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log names what the agent waits for, and nothing is logged about quick calls."""
    monkeypatch.setattr(file_thread, "STALLED_S", 0.02)
    files = FileThread("files")
    gate = threading.Event()
    await files.run("quickly", lambda: None)
    asyncio.get_running_loop().call_later(0.1, gate.set)
    await files.run("making the folders", lambda: gate.wait(LIMIT_S))
    log = capsys.readouterr().out

    assert log.count("file_system_stalled") == 1
    assert "making the folders" in log


async def test_failing_call_does_not_end_the_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """Its exception is logged, and later calls run."""
    files = FileThread("files")

    def fail() -> None:
        raise ZeroDivisionError

    files.submit(fail)

    assert await files.run("x", lambda: 7) == 7
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_process_ends_although_a_call_blocks() -> None:
    """The interpreter does not wait for the thread."""
    program = textwrap.dedent("""
        import asyncio, threading
        from rallypoint.base.file_thread import FileThread

        async def main():
            files = FileThread("files")
            try:
                async with asyncio.timeout(0.05):
                    await files.run("x", threading.Event().wait)
            except TimeoutError:
                print("ended")

        asyncio.run(main())
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


async def test_call_that_returns_at_once_needs_no_turn_of_the_loop() -> None:
    """Its result, or its exception, is there without an await; that of a slow call is not."""
    files = FileThread("files")
    quick = files.begin(lambda: 7)
    assert quick.has_returned(LIMIT_S)
    assert quick.result() == 7
    failing = files.begin(lambda: open("/no/such/file"))
    assert failing.has_returned(LIMIT_S)
    with pytest.raises(FileNotFoundError):
        failing.result()

    gate = threading.Event()
    slow = files.begin(lambda: gate.wait(LIMIT_S))
    assert not slow.has_returned(0.01)
    gate.set()
    assert await files.wait("x", slow) is True


async def test_result_that_nothing_has_taken_is_undone() -> None:
    """A call that is dropped after its return is undone, once."""
    files = FileThread("files")
    undone: list[int] = []
    pending = files.begin(lambda: 7)
    assert pending.has_returned(LIMIT_S)
    files.drop(pending, undone.append)
    files.drop(pending, undone.append)

    assert files.flush(LIMIT_S)
    assert undone == [7]
