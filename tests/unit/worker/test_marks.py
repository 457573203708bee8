"""Marks of workers: the agent learns each once, and one that it does not hear costs nothing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint import worker
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.worker import milestones
from support.clients.scripted import Caller
from support.clients.scripts import run_worker

MARKS = """
import sys
from rallypoint import worker
worker.mark("imported")
worker.mark("imported")
worker.mark("process_group")
assert "grpc" not in sys.modules and "threading" not in sys.modules
"""


def test_mark_without_a_coordinator_costs_nothing(notice_file: Any) -> None:
    """Nothing is printed, and the process ends as it wants to."""
    done = run_worker(MARKS + "worker.progress(1); raise SystemExit(3)")

    assert ("", "", 3) == (done.stdout, done.stderr, done.returncode)


FORKS = (
    MARKS
    + """
import os
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        worker.mark("imported")
        os._exit(0 if "grpc" not in sys.modules else 1)
    assert os.waitpid(pid, 0)[1] == 0
print("done")
"""
)


def test_processes_may_be_forked_after_a_mark(notice_file: Any) -> None:
    """Such as those of a data loader: nothing was loaded, and no thread runs."""
    done = run_worker(FORKS)

    assert ("done\n", "") == (done.stdout, done.stderr)


def test_unknown_name_is_refused(notice_file: Any) -> None:
    """A typing error in a script shows at once."""
    name: Any = "import"
    with pytest.raises(ValueError, match="no milestone 'import': use one of imported, "):
        worker.mark(name)


@pytest.fixture
def mark_pipe(notice_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The agent's end of a FIFO that this worker finds in its environment."""
    path = notice_file.with_name("marks")
    os.mkfifo(path)
    monkeypatch.setenv("RALLYPOINT_MARK_PIPE", str(path))
    monkeypatch.setenv("RALLYPOINT_ROUND", "4")
    monkeypatch.setenv("RALLYPOINT_LOCAL_RANK", "1")
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield fd
    os.close(fd)


def read_marks(fd: int) -> list[tuple[str, ...]]:
    """Return what was written, without the times, which are those of this machine's clock."""
    marks = [mark_.split(" ") for mark_ in os.read(fd, 65_536).decode().split("\n") if mark_]
    assert all(abs(time.monotonic() - int(words[3]) / 1000) < 600 for words in marks)
    return [tuple(words[:3]) for words in marks]


ALONE = MARKS + 'worker.progress(1); worker.progress(2)\nassert "grpc" not in sys.modules'


def test_agent_learns_of_marks_without_a_connection(
    mark_pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once; progress needs no network, but on rank 0."""
    monkeypatch.setenv("RANK", "1")
    done = run_worker(ALONE)

    assert ("", 0) == (done.stderr, done.returncode)
    assert [("4", "1", "imported"), ("4", "1", "process_group")] == read_marks(mark_pipe)


async def test_coordinator_learns_nothing_that_the_agent_knows(at: Caller, mark_pipe: int) -> None:
    """Also when gRPC is loaded, before the mark or after it."""
    at.script.answers["Arrive"] = [barrier_pb2.ArriveResponse(epoch=7, participant_count=2)]
    program = (
        "from rallypoint import worker\nworker.mark('imported')\nworker.barrier()\n"
        "worker.mark('process_group')"
    )
    done = await asyncio.to_thread(run_worker, program)

    assert ("", 0) == (done.stderr, done.returncode)
    assert [("4", "1", "imported"), ("4", "1", "process_group")] == read_marks(mark_pipe)
    assert [] == at.script.requests.get("ReportProgress", [])


def test_full_fifo_is_tried_again(mark_pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next call; nothing waits for it, and the time is that of the mark."""
    monkeypatch.setattr(milestones, "_noted", set())
    monkeypatch.setattr(milestones, "_waiting", {})
    while True:
        try:
            os.write(mark_pipe, b"x" * 4_096)
        except BlockingIOError:
            break
    worker.mark("imported")
    at_ms = int(milestones._waiting[os.getpid(), "imported"] * 1000)
    os.read(mark_pipe, 1 << 20)
    milestones.tell_agent()

    assert {} == milestones._waiting
    assert f"\n4 1 imported {at_ms}\n".encode() == os.read(mark_pipe, 100)


def test_without_its_agent_a_mark_costs_nothing(
    notice_file: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No one reads the FIFO, or it is gone, or it is out of reach."""
    monkeypatch.setenv("RANK", "1")
    unread = tmp_path / "unread"
    os.mkfifo(unread)
    for path in (unread, tmp_path / "gone", tmp_path):
        monkeypatch.setenv("RALLYPOINT_MARK_PIPE", str(path))
        done = run_worker(ALONE)

        assert ("", 0) == (done.stderr, done.returncode)
