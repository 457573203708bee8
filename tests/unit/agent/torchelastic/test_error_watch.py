"""The error files of running workers: what is found, how soon, and what a slow disk delays."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rallypoint.agent.torchelastic import error_watch
from rallypoint.agent.torchelastic.error_files import read_stamp
from rallypoint.agent.torchelastic.error_watch import ErrorFile, ErrorWatch, Found, look_at
from rallypoint.base.file_thread import FileThread

LIMIT_S = 20.0
RECORD = json.dumps(
    {"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "at"}}}
)
SECOND = 1_000_000_000


def watched(path: Path, *, ago_s: float = 0.0) -> ErrorFile:
    """Return the error file of a worker that started so long ago."""
    return ErrorFile(str(path), None, time.monotonic_ns() - int(ago_s * SECOND))


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[ErrorWatch, asyncio.Queue[Found], FileThread]]:
    """Yield a watch, what it finds, and its thread for files."""
    found: asyncio.Queue[Found] = asyncio.Queue()
    files = FileThread("files")
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        watch = ErrorWatch(files, tasks, found.put_nowait)
        try:
            yield watch, found, files
        finally:
            watch.close()


async def test_record_is_found_while_the_worker_runs(tmp_path: Path) -> None:
    """Each worker's error is found once; a worker that ended is not looked at any more."""
    paths = [tmp_path / name for name in "abc"]
    async with watching() as (watch, found, _):
        for key, path in enumerate(paths):
            watch.watch(key, watched(path))
        watch.forget(2)
        for path in paths:
            path.write_text(RECORD)

        some = {(await found.get()).key, (await found.get()).key}

        assert some == {0, 1}
        assert found.empty()


async def test_looks_go_on_until_there_is_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a record is none; the whole one is found by a later look."""
    looks = asyncio.Queue[None]()
    loop = asyncio.get_running_loop()

    def look(files: tuple[tuple[int, ErrorFile], ...]) -> list[Found]:
        result = look_at(files)
        loop.call_soon_threadsafe(looks.put_nowait, None)
        return result

    monkeypatch.setattr(error_watch, "look_at", look)
    path = tmp_path / "error.json"
    path.write_text(RECORD[:-4])
    async with watching() as (watch, found, _):
        watch.watch(1, watched(path))
        await looks.get()
        await looks.get()
        assert found.empty()
        path.write_text(RECORD)

        assert (await found.get()).error.message == "ValueError: bad"


async def test_slow_file_system_delays_only_the_watch(tmp_path: Path) -> None:
    """While the thread stands still, the loop does not, and looks do not pile up."""
    released = threading.Event()

    def stand_still() -> None:
        released.wait(LIMIT_S)

    path = tmp_path / "error.json"
    async with watching() as (watch, found, files):
        files.submit(stand_still)
        watch.watch(1, watched(path))
        path.write_text(RECORD)
        for _ in range(3):
            await asyncio.sleep(error_watch.INTERVAL_S)  # the watch's own interval passes
        assert (found.empty(), len(files._calls)) == (True, 1)
        released.set()

        assert (await found.get()).key == 1


@pytest.mark.parametrize("content", ["", "{", "[", "null", '{"message": '])
def test_what_is_no_record_is_read_once(tmp_path: Path, content: str) -> None:
    """A file without a whole record is read again only when it has changed."""
    path = tmp_path / "error.json"
    file = watched(path)
    path.write_text(content)

    assert look_at(((1, file),)) == []
    assert not file.look()
    path.write_text(RECORD)
    (found,) = look_at(((1, file),))
    assert found.error.message == "ValueError: bad"


def test_record_of_an_earlier_worker_does_not_count(tmp_path: Path) -> None:
    """A plug-in may name the same file in each round: what was there before is stale."""
    path = tmp_path / "error.json"
    path.write_text(RECORD)
    file = watched(path)
    file.stale = read_stamp(path)

    assert look_at(((1, file),)) == []
    assert file.read(time.time(), time.monotonic_ns()) is None  # noqa: TID251  # the file's clock
    path.unlink()
    path.write_text(RECORD)
    assert len(look_at(((1, file),))) == 1


@pytest.mark.parametrize(
    ("claim", "written_s", "least_ms", "most_ms"),
    [
        ("its own time", -0.5, 500, 60_000),
        ("older than the last look without it", -3_600.0, 2_000, 60_000),
        ("of a clock that is ahead", 3_600.0, 0, 0),
    ],
)
def test_age_of_a_record(
    tmp_path: Path, claim: str, written_s: float, least_ms: int, most_ms: int
) -> None:
    """The age follows from the file's time, between 0 and the time since there was no record."""
    path = tmp_path / "error.json"
    path.write_text(RECORD)
    now_s = time.time()  # noqa: TID251  # the time of the file
    os.utime(path, (now_s + written_s, now_s + written_s))

    (found,) = look_at(((1, watched(path, ago_s=2.0)),))

    assert found.error.before_exit_ms is not None
    assert least_ms <= found.error.before_exit_ms <= most_ms, claim


def test_pipe_does_not_block_the_watch(tmp_path: Path) -> None:
    """A worker may put anything at the path of its error file."""
    path = tmp_path / "error.json"
    os.mkfifo(path)

    assert look_at(((1, watched(path)),)) == []
