"""The report of a worker's exit: which facts it has, and who sent the SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.agent.core.inputs import WorkerEnded, WorkerRecorded
from rallypoint.agent.helper.events import Exited
from rallypoint.agent.output.outputs import WorkerOutput
from rallypoint.agent.round.exits import ExitReports, Worker
from rallypoint.agent.round.observer import Observer, WorkerEnd
from rallypoint.agent.torchelastic.error_watch import ErrorFile, Found
from rallypoint.base.file_thread import FileThread

KILL, TERM = int(signal.SIGKILL), int(signal.SIGTERM)
UNCAUGHT = "Traceback (most recent call last):\n  File 'x'\nValueError: bad\n"


class Output:
    """A worker's output: the end of standard error, and when it was written."""

    is_file = False

    def __init__(self, tail: str = "", error_file: str = "", silent_ms: int = 0) -> None:
        self.error_file = error_file
        self.stderr_file = "/logs/stderr.log"
        self._tail = tail
        self._silent_ms = silent_ms

    def tail(self) -> str:
        return self._tail

    def silent_ms(self) -> int:
        return self._silent_ms

    def hurry(self) -> None:
        """There is nothing to wait for."""

    async def wait_end(self, limit_s: float) -> None:
        """There is nothing to wait for."""


class Watcher:
    """An observer that notes what it is shown, and may claim the kill."""

    def __init__(self, *, claims: bool = False) -> None:
        self.claims = claims
        self.seen: list[WorkerEnd] = []

    async def begin(self) -> None: ...

    def variables(self) -> dict[str, str]:
        return {}

    def started(self, pid: int, local_rank: int) -> None: ...

    def ended(self, pid: int) -> Watcher:
        return self

    def explain(self, end: WorkerEnd) -> WorkerEnd:
        self.seen.append(end)
        return replace(end, is_kill_ours=True) if self.claims else end

    def swept(self) -> None: ...

    def close(self) -> None: ...


async def report(
    output: Output,
    exit_code: int | None,
    signum: int | None,
    *observers: Observer,
    was_killed: bool = False,
    is_signalled: bool = False,
    ago_ms: int = 0,
    signalled_ago_ms: int | None = None,
) -> WorkerEnded:
    """Return the report of a worker that ended so, so long ago."""
    posted: list[WorkerEnded | WorkerRecorded] = []
    file = ErrorFile(output.error_file, None, 0) if output.error_file else None
    worker = Worker(3, 1, cast(WorkerOutput, output), file)
    if is_signalled:
        worker.is_signalled = True
        worker.look()
    exits = ExitReports(posted.append, FileThread("files"), observers)
    now_ns = time.monotonic_ns()
    at_ns = now_ns - ago_ms * 1_000_000
    signalled_ns = None if signalled_ago_ms is None else now_ns - signalled_ago_ms * 1_000_000
    event = Exited(7, 100, exit_code, signum, at_ns, signalled_ns, was_killed)
    await exits.report(worker, event)
    (ended,) = posted
    assert isinstance(ended, WorkerEnded)
    return ended


@pytest.mark.parametrize(
    ("signum", "was_killed", "expected"),
    [(KILL, False, False), (KILL, True, True), (TERM, False, False), (None, False, True)],
)
async def test_kill_is_ours_during_a_sweep_and_after_the_helpers_death(
    signum: int | None, was_killed: bool, expected: bool
) -> None:
    """A sweep kills workers, and so does the death of the helper, which leaves no status."""
    watcher = Watcher()
    ended = await report(Output(), None, signum, watcher, was_killed=was_killed)

    assert [end.is_kill_ours for end in watcher.seen] == [expected]
    assert (ended.exit_code, ended.signal) == (None, signum or KILL)


async def test_observers_see_what_earlier_ones_have_added() -> None:
    """A kill that the first observer claims is ours for the second one."""
    second = Watcher()
    await report(Output(), None, KILL, Watcher(claims=True), second)

    assert [end.is_kill_ours for end in second.seen] == [True]


async def test_success_has_no_error_and_no_tail(tmp_path: Path) -> None:
    """A worker that exits with 0 is reported without its error file and its standard error."""
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "survived"}))
    ended = await report(Output("words", str(path)), 0, None)

    assert (ended.error, ended.error_file, ended.stderr_tail) == (None, "", "")
    assert ended.stderr_file == ""


async def test_error_file_outranks_an_uncaught_error(tmp_path: Path) -> None:
    """The error file is the error, with its path; the end of standard error is there too."""
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "recorded"}))
    ended = await report(Output(UNCAUGHT, str(path)), 1, None, is_signalled=True)

    assert ended.error is not None and ended.error.message == "recorded"
    assert (ended.error_file, ended.stderr_tail) == (str(path), UNCAUGHT)
    assert ended.stderr_file == "/logs/stderr.log"


class LogFile(Output):
    """A worker whose standard error is a file on a file system."""

    is_file = True

    def __init__(self, path: Path, tail: str = "") -> None:
        super().__init__(tail)
        self.stderr_file = str(path)


def full_disk(monkeypatch: pytest.MonkeyPatch, *, blocks: int = 0, files: int = 9) -> None:
    """Let every file system have this much room."""
    real = os.statvfs("/")
    facts = SimpleNamespace(
        f_bfree=blocks, f_bavail=blocks, f_frsize=4_096, f_files=max(files, 1), f_ffree=files
    )
    assert {*vars(facts)} <= {*dir(real)}
    monkeypatch.setattr(os, "statvfs", lambda path: facts)


@pytest.mark.parametrize(
    ("blocks", "files", "said"),
    [
        (0, 9, "the disk of its log is full, and the end of what it printed is lost: /logs"),
        (3, 9, "the disk of its log is full, and the end of what it printed is lost: /logs"),
        (9, 0, "the disk of its log has no room for another file: /logs"),
        (9, 9, None),
    ],
)
async def test_full_disk_of_the_log_is_named(
    monkeypatch: pytest.MonkeyPatch, blocks: int, files: int, said: str | None
) -> None:
    """A worker whose standard error goes to a file alone cannot say why it ends."""
    full_disk(monkeypatch, blocks=blocks, files=files)
    ended = await report(LogFile(Path("/logs/stderr.log")), 1, None)

    assert said == (None if ended.error is None else ended.error.message)
    assert "" == ended.error_file


@pytest.mark.parametrize(
    ("exit_code", "tail", "facts"),
    [
        (1, UNCAUGHT, {}),
        (0, "", {}),
        (1, "", {"is_signalled": True}),
    ],
)
async def test_full_disk_explains_nothing_else(
    monkeypatch: pytest.MonkeyPatch, exit_code: int, tail: str, facts: dict[str, Any]
) -> None:
    """Neither a worker that could print its error, nor one that succeeded or got a signal."""
    full_disk(monkeypatch)
    ended = await report(LogFile(Path("/logs/stderr.log"), tail), exit_code, None, **facts)

    assert ended.error is None


async def test_file_system_that_says_nothing_is_not_full(tmp_path: Path) -> None:
    """Its folder is gone; a worker that failed is reported all the same."""
    ended = await report(LogFile(tmp_path / "gone" / "stderr.log"), 1, None)

    assert ended.error is None


@pytest.mark.parametrize(
    ("is_signalled", "silent_ms", "message"),
    [(True, 500, "ValueError: bad"), (True, 60_000, None), (False, 500, None)],
)
async def test_uncaught_error_before_the_signal(
    is_signalled: bool, silent_ms: int, message: str | None
) -> None:
    """An error that was printed shortly before the agent's signal is the worker's own."""
    output = Output(UNCAUGHT, silent_ms=silent_ms)
    ended = await report(output, None, TERM, is_signalled=is_signalled)

    assert (ended.error.message if ended.error else None) == message
    if ended.error is not None:
        assert ended.error.before_exit_ms is not None and ended.error.before_exit_ms >= silent_ms


async def test_time_of_the_error_is_the_time_of_the_failure(tmp_path: Path) -> None:
    """Without a time in the error, the worker failed when its end was seen."""

    class Dated(Watcher):
        def explain(self, end: WorkerEnd) -> WorkerEnd:
            return replace(end, error=ErrorRecord("timer", "", 0, 1_700_000_000))

    now_ms = time.time() * 1000  # noqa: TID251  # compared with the report's time
    dated, undated = await report(Output(), 1, None, Dated()), await report(Output(), 1, None)

    assert dated.failed_ms == 1_700_000_000_000
    assert undated.failed_ms is not None and 0 <= undated.failed_ms - int(now_ms) < 60_000


def test_error_that_was_found_is_reported_while_the_worker_runs() -> None:
    """The report has the error, its age, its time for people, and the output so far."""
    posted: list[WorkerEnded | WorkerRecorded] = []
    exits = ExitReports(posted.append, FileThread("files"), ())
    output = Output("words\n", "/logs/error.json")
    error = ErrorRecord("ValueError: bad", "at", 120, 1_700_000_000)

    exits.report_found(
        Worker(3, 1, cast(WorkerOutput, output)), Found(1, error, time.monotonic_ns())
    )

    (found,) = posted
    assert isinstance(found, WorkerRecorded)
    assert (found.round, found.local_rank, found.error) == (3, 1, error)
    assert (found.stderr_tail, found.error_file) == ("words\n", "/logs/error.json")
    assert found.failed_ms == 1_700_000_000_000


async def test_age_of_a_record_is_bounded_by_the_last_look(tmp_path: Path) -> None:
    """A file whose server's clock is late by an hour is no older than the last look without it."""
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "recorded"}))
    now_s = time.time()  # noqa: TID251  # the time of the file
    os.utime(path, (now_s - 3_600, now_s - 3_600))
    output = Output("", str(path))
    file = ErrorFile(str(path), None, time.monotonic_ns() - 200_000_000)
    posted: list[WorkerEnded | WorkerRecorded] = []
    exits = ExitReports(posted.append, FileThread("files"), ())

    await exits.report(
        Worker(3, 1, cast(WorkerOutput, output), file), Exited(7, 100, 1, None, time.monotonic_ns())
    )

    error = posted[0].error
    assert error is not None and error.before_exit_ms is not None
    assert 200 <= error.before_exit_ms < 60_000
