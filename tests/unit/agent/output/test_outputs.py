"""The streams of workers with real files, pipes, consoles and folders."""

from __future__ import annotations

import os
import select
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.output.destinations import (
    ALL,
    Choice,
    Destinations,
    OutputSpec,
    Ranks,
    Streams,
)
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutput, WorkerOutputs
from rallypoint.base import console
from rallypoint.base.console import Console, Consoles
from support.core.orders import run_order
from support.processes.descriptors import list_open
from support.processes.threads import forbid_threads

LIMIT_S = 10
ORDER = run_order(master_addr="m", master_port=1, max_restarts=3)


class Screen:
    """Stands in for a terminal: collects what the agent's two streams show."""

    def __init__(self) -> None:
        self._fds = [os.pipe(), os.pipe()]
        self.consoles = Consoles(*(Console(write_fd) for _, write_fd in self._fds))
        self._shown = [bytearray(), bytearray()]
        self._readers = [
            threading.Thread(target=self._read, args=(fd, shown))
            for (fd, _), shown in zip(self._fds, self._shown, strict=True)
        ]

    def _read(self, fd: int, shown: bytearray) -> None:
        while data := os.read(fd, 65_536):
            shown += data

    def begin(self) -> None:
        """Start to read."""
        for reader in self._readers:
            reader.start()

    def end(self) -> list[bytes]:
        """Return what was shown on standard output and on standard error."""
        self.hang_up()
        for reader in self._readers:
            reader.join(LIMIT_S)
        return [bytes(shown) for shown in self._shown]

    def read_err(self) -> bytes:
        """Read from standard error once, without `begin`."""
        return os.read(self._fds[1][0], 65_536)

    def hang_up(self) -> None:
        for at, (_, write_fd) in enumerate(self._fds):
            if write_fd >= 0:
                os.close(write_fd)
            self._fds[at] = self._fds[at][0], -1

    def close(self) -> None:
        self.hang_up()
        for read_fd, _ in self._fds:
            os.close(read_fd)


@pytest.fixture
def screen() -> Iterator[Screen]:
    screen = Screen()
    yield screen
    screen.close()


def outputs(screen: Screen, spec: OutputSpec) -> WorkerOutputs:
    folder = LogFolder(spec.log_dir, "job")
    return WorkerOutputs(spec, screen.consoles, folder, node_name=lambda: "n7")


def write(output: WorkerOutput, out: bytes, err: bytes) -> None:
    """Write as the worker, and end it."""
    with output:
        for fd, data in ((output.stdout_fd, out), (output.stderr_fd, err)):
            assert os.write(fd, data) == len(data)


async def run(screen: Screen, spec: OutputSpec, out: bytes, err: bytes) -> WorkerOutputs:
    """Let both workers of a round write the same."""
    found = outputs(screen, spec)
    found.begin(ORDER)
    for rank in range(2):
        write(found.open(ORDER, rank), out, err)
    await found.finish()
    return found


def is_one(first_fd: int, second_fd: int) -> bool:
    return os.path.sameopenfile(first_fd, second_fd)


def read_logs(log_dir: Path) -> dict[str, bytes]:
    """Return the log files of the only round of the only job."""
    (folder,) = log_dir.glob("job_n7_*/attempt_0")
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.log")}


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*.log")]


def choose(streams: int) -> tuple[Choice, ...]:
    return (Choice(ALL, Streams(streams)),)


async def test_tee(screen: Screen, tmp_path: Path) -> None:
    """A tee'd stream goes to the file unchanged, and to the console as lines with a prefix."""
    screen.begin()
    spec = OutputSpec(
        str(tmp_path), tee=choose(3), stdout_needles=(b"b",), stderr_needles=(b"\xff",)
    )
    await run(screen, spec, b"a\r\nb\rc", b"\xff\xfe")
    out, err = screen.end()
    files = read_logs(tmp_path)
    lines = [b"[default%d]:%s" % (rank, line) for rank in range(2) for line in (b"a", b"b", b"c")]

    assert sorted(out.splitlines()) == lines
    assert sorted(err.splitlines()) == [b"[default0]:\xff\xfe", b"[default1]:\xff\xfe"]
    assert sorted(files.pop("filtered_stdout.log").splitlines()) == [lines[1], lines[4]]
    assert sorted(files.pop("filtered_stderr.log").splitlines()) == sorted(err.splitlines())
    assert files == {
        f"{rank}/{name}.log": data
        for rank in range(2)
        for name, data in (("stdout", b"a\r\nb\rc"), ("stderr", b"\xff\xfe"))
    }


async def test_redirect_uses_no_pipe(screen: Screen, tmp_path: Path) -> None:
    """The worker writes to the file itself; the end of standard error is read from it."""
    screen.begin()
    found = outputs(screen, OutputSpec(str(tmp_path), redirects=choose(3)))
    found.begin(ORDER)
    output = found.open(ORDER, 1)
    with output:
        paths = [os.readlink(f"/proc/self/fd/{fd}") for fd in (output.stdout_fd, output.stderr_fd)]
        os.write(output.stderr_fd, b"x" * 10_000 + b"\nlast words\n")

    assert [Path(path).name for path in paths] == ["stdout.log", "stderr.log"]
    assert output.stderr_file == paths[1]
    assert output.tail() == "last words\n"
    assert 0 <= output.silent_ms() < LIMIT_S * 1000
    past_s = time.time() - 60  # noqa: TID251
    os.utime(paths[1], (past_s, past_s))
    assert 60_000 <= output.silent_ms() < 60_000 + LIMIT_S * 1000
    await found.finish()
    assert screen.end() == [b"", b""]


async def test_default(screen: Screen) -> None:
    """By default stdout is the agent's own, stderr is passed on unchanged, and no file is left."""
    screen.begin()
    spec = OutputSpec()
    found = outputs(screen, spec)
    found.begin(ORDER)
    output = found.open(ORDER, 0)
    path = found.folder.path
    assert path is not None and Path(output.error_file).parent == path / "attempt_0" / "0"
    assert is_one(output.stdout_fd, screen.consoles.out.fd)
    write(output, b"\rout", b"\rerr")
    await found.finish()
    found.folder.close()

    assert output.tail() == "\rerr"
    assert not path.exists()
    assert screen.end() == [b"\rout", b"\rerr"]


async def test_unfinished_line_is_shown_soon(screen: Screen) -> None:
    """Without a prefix, a prompt or a progress bar is shown before its line ends."""
    found = outputs(screen, OutputSpec())
    found.begin(ORDER)
    with found.open(ORDER, 0) as output:
        os.write(output.stderr_fd, b"Password: ")

        assert screen.read_err() == b"Password: "
    screen.begin()
    await found.finish()
    screen.end()


async def test_hidden_worker_still_has_a_tail(screen: Screen) -> None:
    """The console shows nothing of a hidden worker; the report has the end of its stderr."""
    screen.begin()
    found = outputs(screen, OutputSpec(shown_local=(Ranks(0, 0),)))
    found.begin(ORDER)
    hidden = found.open(ORDER, 1)
    write(hidden, b"out\n", b"err\n")
    await found.finish()

    assert hidden.tail() == "err\n"
    assert screen.end() == [b"", b""]


async def test_full_disk_is_logged_once_and_the_console_goes_on(
    screen: Screen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk stops no worker, and the console shows everything."""
    screen.begin()
    found = outputs(screen, OutputSpec(str(tmp_path), tee=choose(1)))
    found.reify = lambda order: Destinations(
        {0: "/dev/full"}, {0: os.devnull}, {0: "/dev/full"}, {}, {0: os.devnull}
    )
    found.begin(ORDER)
    with found.open(ORDER, 0) as output:
        for number in range(3):
            os.write(output.stdout_fd, b"%d\n" % number)
    await found.finish()

    assert screen.end()[0].splitlines() == [b"[default0]:%d" % number for number in range(3)]
    log = capsys.readouterr().out
    assert log.count("log_file_not_written") == 1 and "/dev/full" in log
    assert output.error_file == ""


async def test_file_is_complete_although_the_console_blocks(
    screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the console is not read, the agent ends in time, and the files are complete."""
    monkeypatch.setattr(console, "LAST_BYTES_MAX", console.PIECES_BYTES_MAX)
    found = outputs(screen, OutputSpec(str(tmp_path), tee=choose(3)))
    found.begin(ORDER)
    size = 1_000_000
    writers = []
    for rank in range(2):
        output = found.open(ORDER, rank)

        def flood(output: WorkerOutput = output) -> None:
            with output:
                for fd in (output.stdout_fd, output.stderr_fd):
                    rest = memoryview(b"y" * 99 + b"\n").tobytes() * (size // 100)
                    while rest:
                        rest = rest[os.write(fd, rest) :]

        writers.append(threading.Thread(target=flood))
        writers[-1].start()
    began_s = time.monotonic()
    await found.finish()
    took_s = time.monotonic() - began_s
    for writer in writers:
        writer.join(LIMIT_S)
    for stream in found._streams:
        await stream.wait_end(LIMIT_S)

    assert took_s < 5
    assert sizes(tmp_path) == [size] * 4
    screen.begin()
    assert screen.consoles.err.flush(LIMIT_S) and screen.consoles.out.flush(LIMIT_S)
    screen.end()


async def test_tail_is_kept_although_the_console_blocks(screen: Screen) -> None:
    """The report has the last lines of a worker that dies while the console blocks."""
    found = outputs(screen, OutputSpec())
    found.begin(ORDER)
    output = found.open(ORDER, 0)
    with output:
        while select.select([], [output.stderr_fd], [], 1)[1]:
            os.write(output.stderr_fd, b"z" * 4_095 + b"\n")
        # Console, queue and pipe are full now.
    output.hurry()
    await output.wait_end(LIMIT_S)

    assert output.streams[-1].has_ended()
    screen.begin()
    await found.finish()
    assert set(screen.end()[1]) == set(b"z\n")


async def test_folder_that_cannot_be_made_is_an_error_of_the_round(
    screen: Screen, tmp_path: Path
) -> None:
    """The error is raised, and no descriptor is left open."""
    before = list_open()
    found = outputs(screen, OutputSpec(str(tmp_path / "gone"), tee=choose(3)))
    with pytest.raises(FileNotFoundError):
        found.begin(ORDER)
    found.reify = lambda order: Destinations(
        {0: ""}, {0: "/no/such/folder"}, {0: ""}, {0: "/no/such/folder"}
    )
    found.begin(ORDER)
    with pytest.raises(FileNotFoundError):
        found.open(ORDER, 0)
    await found.finish()

    assert list_open() - before == set()


async def test_failure_to_start_a_thread_is_an_error_of_the_worker(
    screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a thread the worker is not started, and no descriptor is left open."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    found = outputs(screen, OutputSpec(str(tmp_path), tee=choose(3), stdout_needles=(b"b",)))
    found.begin(ORDER)
    before = list_open()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            found.open(ORDER, 0)

    assert list_open() - before == set()
    await found.finish()


async def test_pipe_without_reader_is_an_error_of_the_worker(
    screen: Screen, tmp_path: Path
) -> None:
    """The agent does not wait for a reader of a plug-in's pipe, and does not read it."""
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    paths = {0: path, 1: path}
    found = outputs(screen, OutputSpec())
    found.reify = lambda _: Destinations({0: "", 1: ""}, paths)
    found.begin(ORDER)
    with pytest.raises(OSError, match="No such device"):
        found.open(ORDER, 0)

    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with found.open(ORDER, 0) as output:
        assert os.get_blocking(output.stderr_fd)
        os.write(output.stderr_fd, b"heard")
        assert output.tail() == ""
        assert os.read(reader, 100) == b"heard"
    os.close(reader)
    await found.finish()
    assert output.tail() == ""  # it has no writer any more


async def test_pipes_replace_unavailable_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no terminal can be opened, or it was hung up, the worker writes to a pipe."""
    ours, theirs = os.openpty()
    outputs = WorkerOutputs(
        OutputSpec(), Consoles(Console(theirs), Console(theirs)), LogFolder(os.devnull, "job"), str
    )
    outputs.begin(ORDER)
    with outputs.open(ORDER, 0) as output:
        assert os.isatty(output.stderr_fd)
    before = list_open()

    def refuse() -> tuple[int, int]:
        raise OSError(28, "No space left on device")

    def hang_up(*_: object) -> None:
        raise termios.error(5, "Input/output error")

    for name, failing in (("os.openpty", refuse), ("tty.setraw", hang_up)):
        with monkeypatch.context() as patch:
            patch.setattr(name, failing)
            with outputs.open(ORDER, 0) as output:
                assert not os.isatty(output.stderr_fd)
                os.write(output.stderr_fd, b"last words")
            await output.wait_end(LIMIT_S)
        assert output.tail() == "last words"
    await outputs.finish()

    assert list_open() - before == set()
    os.close(ours)
    os.close(theirs)


async def test_last_output_needs_no_thread(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown where no thread can be started any more."""
    found = outputs(screen, OutputSpec())
    found.begin(ORDER)
    screen.begin()
    write(found.open(ORDER, 0), b"hello\n", b"")
    with monkeypatch.context() as patch:
        forbid_threads(patch)
        await found.finish()

    assert screen.end() == [b"hello\n", b""]
