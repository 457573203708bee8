"""The agent's streams, each written by a thread: real pipes, and no test sleeps."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator

import pytest

from rallypoint.base import console as module
from rallypoint.base.console import (
    LAST_BYTES_MAX,
    LINES_MAX,
    PIECES_BYTES_MAX,
    Console,
    open_text,
)
from support.processes.threads import forbid_threads

LIMIT_S = 10


def never() -> bool:
    return False


class Pipe:
    """A console that takes what a pipe holds, until it is read."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        self.console = Console(self._write_fd)

    def read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += os.read(self._read_fd, size - len(found))
        return found

    def drain(self) -> bytes:
        """Return everything that was passed on."""
        found: list[bytes] = []

        def read() -> None:
            while piece := os.read(self._read_fd, 65_536):
                found.append(piece)

        reader = threading.Thread(target=read)
        reader.start()
        assert self.console.flush(LIMIT_S)
        os.close(self._write_fd)
        self._write_fd = -1
        reader.join(LIMIT_S)
        return b"".join(found)

    def close(self) -> None:
        self.console.release()
        os.close(self._read_fd)  # a thread that stands in a write gets EPIPE
        assert self.console.flush(LIMIT_S)
        if self._write_fd >= 0:
            os.close(self._write_fd)


@pytest.fixture
def others() -> set[threading.Thread]:
    """Return the threads before the console of this test."""
    return set(threading.enumerate())


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def fill(console: Console) -> int:
    """Hand over output until no more is taken at once; return its size.

    The thread ends whatever happens: it would write into descriptors of later tests.
    """
    size = 0
    is_full, done = threading.Event(), threading.Event()

    def write() -> None:
        nonlocal size
        while not done.is_set():
            console.write(b"x" * 65_536, done.is_set)
            size += 65_536
            if size > PIECES_BYTES_MAX:  # more than a pipe holds: from now on it is never idle
                is_full.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert is_full.wait(LIMIT_S)
        assert not console.flush(LIMIT_S)  # it has stalled: it is not read
    finally:
        done.set()
        console.nudge()
        writer.join(LIMIT_S)
    return size


def test_output_waits_for_the_console(pipe: Pipe) -> None:
    """A worker's thread waits while too much is kept, and nothing is lost of what was taken."""
    size = fill(pipe.console)

    assert PIECES_BYTES_MAX < size < PIECES_BYTES_MAX + 4 * 65_536
    assert len(pipe.drain()) == size


def test_ended_worker_waits_only_while_the_console_moves(pipe: Pipe) -> None:
    """What the console does not take is dropped and counted, so that the thread ends; what it takes
    slowly is not."""
    fill(pipe.console)
    pipe.console.write(b"Y" * LAST_BYTES_MAX, lambda: True)
    ended = threading.Thread(target=pipe.console.write, args=(b"Z" * 77, lambda: True))
    ended.start()
    ended.join(LIMIT_S)
    assert not ended.is_alive()
    slow = threading.Thread(target=pipe.console.write, args=(b"W" * 88, lambda: True))
    slow.start()
    first = pipe.read(1_000_000)
    slow.join(LIMIT_S)
    shown = first + pipe.drain()

    assert [shown.count(kind) for kind in (b"Y", b"Z", b"W")] == [LAST_BYTES_MAX, 0, 88]
    assert b"77 bytes of ended workers were dropped: the console had stalled\n" in shown


def test_slow_console_gets_the_report(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes a few kilobytes at a time has not stalled."""
    monkeypatch.setattr(module, "STALLED_S", 0.5)
    pipe.console.write(b"x" * 200_000, never)
    assert pipe.read(1) == b"x"  # it is on its way, and the report comes after it
    pipe.console.say(b"the report\n")
    heard: list[bool] = []
    flush = threading.Thread(target=lambda: heard.append(pipe.console.flush(LIMIT_S)))
    flush.start()
    pipe.read(3_999)
    for _ in range(49):
        pipe.read(4_000)
        flush.join(0.05)  # 80 KB/s: 64 KiB of it take longer than a stall
    assert pipe.read(len(b"the report\n")) == b"the report\n"

    flush.join(LIMIT_S)
    assert heard == [True]


@pytest.mark.parametrize("is_json", [False, True])
def test_lines_never_wait(pipe: Pipe, *, is_json: bool) -> None:
    """The agent's own go to a console that stands still, too; the oldest are dropped and counted,
    and the newest comes through: that is the report."""
    pipe.console.is_json = is_json
    size = fill(pipe.console)
    for number in range(LINES_MAX + 50):
        pipe.console.say(f"line {number}\n".encode())
    # The first line may be on its way already when the others come.
    said = pipe.drain()[65_536:].lstrip(b"x").decode().split("x")[0].splitlines()

    assert size
    why = "50 log lines were dropped: the console had stalled"
    if is_json:
        found = json.loads(said[0])
        assert (found["event"], found["why"]) == ("log_dropped", why)
    else:
        assert said[0] == why
    assert said[1:] == [f"line {number}" for number in range(50, LINES_MAX + 50)]


def test_report_is_the_last_and_waits_for_little(pipe: Pipe) -> None:
    """It overtakes the lines that a slow console has not taken, and whole lines are dropped."""
    lines = [b"%06d %s\n" % (number, b"x" * 92) for number in range(20_000)]
    pipe.console.write(b"".join(lines), never)
    assert not pipe.console.flush(LIMIT_S)
    pipe.console.say(b"first\n")
    begin = b""
    while b"first\n" not in begin:
        begin += pipe.read(1_000)
    pipe.console.release()
    pipe.console.say(b"the report\n")
    shown = (begin + pipe.drain()).splitlines(keepends=True)

    assert shown.index(b"first\n") < 2_000
    assert shown[-2].endswith(b"bytes of ended workers were dropped: the console had stalled\n")
    assert shown[-1] == b"the report\n"
    kept = [line for line in shown[:-2] if line != b"first\n"]
    assert kept == lines[: len(kept)]


def test_released_console_holds_up_nobody(pipe: Pipe) -> None:
    """Waiting threads continue, and so do later ones."""
    fill(pipe.console)
    stuck = threading.Thread(target=pipe.console.write, args=(b"x", never))
    stuck.start()
    pipe.console.release()
    stuck.join(LIMIT_S)
    pipe.console.write(b"y" * 9_000_000, never)

    assert not stuck.is_alive()


def test_slow_console_is_waited_for(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes something now and then has not stalled; the limit holds all the same."""
    size = fill(pipe.console)
    result: list[bool] = []
    waits = threading.Thread(target=lambda: result.append(pipe.console.flush(LIMIT_S)))
    waits.start()
    pipe.read(size)
    waits.join(LIMIT_S)

    assert result == [True]
    monkeypatch.setattr(module, "STALLED_S", LIMIT_S)
    fill_again = threading.Thread(target=pipe.console.write, args=(b"x" * 200_000, never))
    fill_again.start()
    fill_again.join(LIMIT_S)
    assert not pipe.console.flush(0.1)


def test_lines_of_several_writers_do_not_mix(pipe: Pipe) -> None:
    """What is handed over at once comes out at once."""
    names = [bytes([65 + n]) for n in range(8)]

    def write(name: bytes) -> None:
        for _ in range(20):
            pipe.console.write(name * 9_999 + b"\n", never)

    writers = [threading.Thread(target=write, args=(name,)) for name in names]
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read(8 * 20 * 10_000)))
    for thread in (reader, *writers):
        thread.start()
    for thread in (*writers, reader):
        thread.join(LIMIT_S)

    lines = found[0].splitlines()
    assert sorted(lines) == sorted(name * 9_999 for name in names for _ in range(20))


def test_console_that_does_not_block_loses_nothing(pipe: Pipe) -> None:
    """A stream that is non-blocking is waited for."""
    os.set_blocking(pipe.console.fd, False)
    data = os.urandom(200_000)
    pipe.console.write(data, never)

    assert pipe.read(len(data)) == data


def test_console_whose_reader_is_gone_holds_up_nobody(pipe: Pipe) -> None:
    """Output without a reader counts as written."""
    gone = os.open("/dev/full", os.O_WRONLY)
    console = Console(gone)
    for _ in range(100):
        console.write(b"x" * 65_536, never)

    assert console.flush(LIMIT_S)
    os.close(gone)


def test_text_is_handed_over_in_lines(pipe: Pipe) -> None:
    """A log line is one piece, whatever is in it."""
    file = open_text(pipe.console)
    file.write("höh\udcff\n")

    assert pipe.drain() == b"h\xc3\xb6h\\udcff\n"


def test_last_line_needs_no_thread(
    others: set[threading.Thread], pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written where no thread can be started any more."""
    pipe.console.release()
    for thread in set(threading.enumerate()) - others:
        thread.join(LIMIT_S)
    forbid_threads(monkeypatch)
    pipe.console.say(b"the job failed\n")

    assert pipe.console.flush(LIMIT_S)
    assert pipe.read(15) == b"the job failed\n"
