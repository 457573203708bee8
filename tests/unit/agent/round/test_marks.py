"""The FIFO of marks: what its lines mean, and what becomes of everything else in it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.held_round import Milestone
from rallypoint.agent.core.inputs import MilestoneReached
from rallypoint.agent.machine.fifo import FifoLines
from rallypoint.agent.round import marks
from rallypoint.agent.round.marks import LINE_BYTES_MAX, MarkPipe, parse_mark
from support.core.orders import run_order

IMPORTED = Milestone.IMPORTED
LIMIT_S = 60


def order(number: int = 1) -> RunOrder:
    first = run_order()
    return replace(first, header=replace(first.header, number=number))


class Node:
    """A pipe, and what it has posted."""

    def __init__(self, folder: Path) -> None:
        self.marks: list[MilestoneReached] = []
        self.came = asyncio.Event()
        self.pipe = MarkPipe(lambda: folder, self.post)

    def post(self, mark: MilestoneReached) -> None:
        self.marks.append(mark)
        self.came.set()

    def write(self, data: bytes) -> None:
        fd = os.open(self.pipe.path(), os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    async def wait(self, count: int) -> list[MilestoneReached]:
        async with asyncio.timeout(LIMIT_S):
            while len(self.marks) < count:
                self.came.clear()
                await self.came.wait()
        return self.marks


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    made.pipe.close()


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        (b"3 0 imported 17", MilestoneReached(3, 0, IMPORTED, 17)),
        (b"3 12 process_group 0", MilestoneReached(3, 12, Milestone.PROCESS_GROUP, 0)),
        (
            b"9" * 16 + b" 9999 imported " + b"9" * 16,
            MilestoneReached(10**16 - 1, 9_999, IMPORTED, 10**16 - 1),
        ),
        (b"", None),
        (b"3 0 imported", None),
        (b"3 0 imported 17 ", None),
        (b" 3 0 imported 17", None),
        (b"3 -1 imported 17", None),
        (b"3 0 trained 17", None),
        (b"3 0 imported 1e3", None),
        (b"3 0 imported \xd9\xa1", None),
        (b"9" * 17 + b" 0 imported 1", None),
        (b"\xff\x00", None),
    ],
)
def test_line_is_a_mark_or_nothing(line: bytes, mark: MilestoneReached | None) -> None:
    """Numbers are short, and the longest line fits the limit."""
    assert mark == parse_mark(line)
    assert mark is None or len(line) <= LINE_BYTES_MAX


async def test_marks_of_the_round_are_posted_once(node: Node) -> None:
    """Not those of another round or of no worker, whatever else is written between them."""
    node.write(b"early")
    node.pipe.begin(order(2))
    node.write(b"\n1 0 imported 5\n\n2 2 imported 5\n\n2 0 imported 6\n\n2 0 imported 7\n")
    node.write(b"x" * 60_000)
    await node.wait(1)
    node.write(b"\n2 1 imported 8\n")

    assert [MilestoneReached(2, 0, IMPORTED, 6), MilestoneReached(2, 1, IMPORTED, 8)] == (
        await node.wait(2)
    )
    node.pipe.begin(order(3))
    node.write(b"\n2 0 imported 9\n\n3 0 imported 10\n")
    assert MilestoneReached(3, 0, IMPORTED, 10) == (await node.wait(3))[-1]


async def test_worker_that_writes_without_end_is_read_with_pauses(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop reads one portion, then it is free; the others' marks come all the same."""
    reads: list[int] = []
    has_read = asyncio.Event()
    genuine = FifoLines.read

    def read(lines: FifoLines) -> list[bytes | None]:
        found = genuine(lines)
        reads.append(len(found))
        has_read.set()
        return found

    monkeypatch.setattr(FifoLines, "read", read)
    monkeypatch.setattr(marks, "PAUSE_S", 10 * LIMIT_S)
    node.write(b"garbage\n" * 7_000 + b"\n1 1 imported 5\n")
    node.pipe.begin(order())
    async with asyncio.timeout(LIMIT_S):
        await has_read.wait()
    for _ in range(10):
        await asyncio.sleep(0)

    assert [marks.READ_BYTES // 8] == reads
    monkeypatch.undo()
    node.pipe._listen()  # the pause is over
    assert [MilestoneReached(1, 1, IMPORTED, 5)] == await node.wait(1)


def test_full_disk_keeps_no_worker_from_starting(tmp_path: Path) -> None:
    """A FIFO that cannot be made is tried again with the next worker."""
    folder = tmp_path / "own"
    made = Node(folder)
    assert "" == made.pipe.path()
    made.pipe.begin(order())
    folder.mkdir()

    assert Path(made.pipe.path()).is_fifo()
    assert 0o600 == os.stat(made.pipe.path()).st_mode & 0o777


def test_fifo_that_could_not_be_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor was left at first; the file of the attempt is in no way."""
    made = Node(tmp_path)

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        assert "" == made.pipe.path()

    assert Path(made.pipe.path()).is_fifo()


async def test_closed_pipe_stays_closed(tmp_path: Path) -> None:
    """A start that was slow may still ask for it while the agent ends."""
    made = Node(tmp_path)
    assert made.pipe.path()
    made.pipe.begin(order())
    made.pipe.close()
    made.pipe.begin(order(2))
    made.pipe.close()

    assert "" == made.pipe.path()
    assert made.pipe._lines is None
