"""What a worker writes to, opened for real: files, pipes, a console, and the folders for them."""

from __future__ import annotations

import os
import select
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rallypoint.agent.output import console
from rallypoint.agent.output.console import Console, Consoles
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
from support.orders import run_order

LIMIT_S = 10
ORDER = run_order(master_addr="m", master_port=1, max_restarts=3)


class Screen:
    """A terminal in small: shows what the agent's two streams brought."""

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
        """Begin to read."""
        for reader in self._readers:
            reader.start()

    def end(self) -> list[bytes]:
        """Return what was shown on standard output and on standard error."""
        self.hang_up()
        for reader in self._readers:
            reader.join(LIMIT_S)
        return [bytes(shown) for shown in self._shown]

    def read_err(self) -> bytes:
        """Return the next of standard error, instead of `begin`."""
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
    """Be the worker, from its first words to its end."""
    with output:
        for fd, data in ((output.stdout_fd, out), (output.stderr_fd, err)):
            assert os.write(fd, data) == len(data)


async def run(screen: Screen, spec: OutputSpec, out: bytes, err: bytes) -> WorkerOutputs:
    """Have both workers of a round write the same."""
    found = outputs(screen, spec)
    found.begin(ORDER)
    for rank in range(2):
        write(found.open(ORDER, rank), out, err)
    await found.finish()
    return found


def is_one(first_fd: int, second_fd: int) -> bool:
    return os.path.sameopenfile(first_fd, second_fd)


def read_logs(log_dir: Path) -> dict[str, bytes]:
    """Return what the only round of the only job wrote."""
    (folder,) = log_dir.glob("job_n7_*/attempt_0")
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.log")}


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*.log")]


def choose(streams: int) -> tuple[Choice, ...]:
    return (Choice(ALL, Streams(streams)),)


async def test_tee(screen: Screen, tmp_path: Path) -> None:
    """To the file byte for byte, to the console line by line with a prefix; needles apart."""
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


async def test_redirect_costs_the_agent_nothing(screen: Screen, tmp_path: Path) -> None:
    """The worker has the file itself; the end of standard error is read from it."""
    screen.begin()
    found = outputs(screen, OutputSpec(str(tmp_path), redirects=choose(3)))
    found.begin(ORDER)
    output = found.open(ORDER, 1)
    with output:
        paths = [os.readlink(f"/proc/self/fd/{fd}") for fd in (output.stdout_fd, output.stderr_fd)]
        os.write(output.stderr_fd, b"x" * 10_000 + b"\nlast words\n")

    assert [Path(path).name for path in paths] == ["stdout.log", "stderr.log"]
    assert output.tail() == "last words\n"
    assert 0 <= output.silent_ms() < LIMIT_S * 1000
    past_s = time.time() - 60  # noqa: TID251
    os.utime(paths[1], (past_s, past_s))
    assert 60_000 <= output.silent_ms() < 60_000 + LIMIT_S * 1000
    await found.finish()
    assert screen.end() == [b"", b""]


async def test_default(screen: Screen) -> None:
    """Standard output is the agent's own, standard error is passed on as it is; no file is left."""
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

    assert output.tail() == "\rerr"
    assert not path.exists()
    assert screen.end() == [b"\rout", b"\rerr"]


async def test_unfinished_line_is_shown_soon(screen: Screen) -> None:
    """A prompt, or a progress bar, does not wait for its end where lines have no prefix."""
    found = outputs(screen, OutputSpec())
    found.begin(ORDER)
    with found.open(ORDER, 0) as output:
        os.write(output.stderr_fd, b"Password: ")

        assert screen.read_err() == b"Password: "
    screen.begin()
    await found.finish()
    screen.end()


async def test_hidden_worker_is_heard_by_the_agent_only(screen: Screen) -> None:
    """Its standard output is thrown away; the end of its standard error is kept for the report."""
    screen.begin()
    found = outputs(screen, OutputSpec(shown_local=(Ranks(0, 0),)))
    found.begin(ORDER)
    hidden = found.open(ORDER, 1)
    write(hidden, b"out\n", b"err\n")
    await found.finish()

    assert hidden.tail() == "err\n"
    assert screen.end() == [b"", b""]


async def test_full_disk_is_told_once_and_the_console_goes_on(
    screen: Screen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that takes no more ends no worker, and nothing of the console is lost."""
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
    said = capsys.readouterr().out
    assert said.count("log_file_not_written") == 1 and "/dev/full" in said
    assert output.error_file == ""


async def test_file_is_complete_although_the_console_stands_still(
    screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the console: the agent ends in time, and the files have everything."""
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


async def test_tail_is_kept_whatever_the_console_does(screen: Screen) -> None:
    """A worker that dies while the console stands still has its last words in the report."""
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


# --- folders ---


def test_no_folder_is_ever_used_twice(tmp_path: Path) -> None:
    """A later round with the same restart count has a name of its own."""
    folder = LogFolder(str(tmp_path), "job")
    names = [
        Path(str(folder.begin(replace(ORDER, number=number, restart_count=count), "n7"))).name
        for number, count in ((1, 0), (4, 0), (5, 1), (7, 0))
    ]

    assert names == ["attempt_0", "attempt_0_round_4", "attempt_1", "attempt_0_round_7"]
    assert folder.path is not None and folder.path.parent == tmp_path
    assert sorted(path.name for path in (folder.path / "attempt_1").iterdir()) == ["0", "1"]
    folder.close()
    assert folder.path.exists()


def test_names_are_safe(tmp_path: Path) -> None:
    """A job may be called anything."""
    folder = LogFolder(str(tmp_path), "../../etc/pass wd\0" + "ä" * 300)
    folder.begin(ORDER, "node/7")
    (name,) = os.listdir(tmp_path)

    assert name.startswith(".._.._etc_pass_wd__") and "_node_7_" in name


def test_what_was_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a log dir, empty folders go in the end, and nothing else."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = LogFolder("", "job")
    path = Path(str(folder.begin(ORDER, "n7")))
    folder.begin(replace(ORDER, number=2, restart_count=1), "n7")
    (path / "1" / "error.json").write_text("{}")
    folder.close()
    (left,) = [path for path in tmp_path.rglob("*") if not path.is_dir()]

    assert left == path / "1" / "error.json"
    assert os.listdir(path) == ["1"] and os.listdir(path.parent) == ["attempt_0"]


async def test_folder_that_cannot_be_made_is_an_error_of_the_round(
    screen: Screen, tmp_path: Path
) -> None:
    """It is said for the caller to report; nothing is left open."""
    before = len(os.listdir("/proc/self/fd"))
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

    assert len(os.listdir("/proc/self/fd")) == before


async def test_no_thread_to_be_had_is_an_error_of_the_worker(
    screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine allows no more threads the worker is refused, and nothing stays open."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    found = outputs(screen, OutputSpec(str(tmp_path), tee=choose(3), stdout_needles=(b"b",)))
    found.begin(ORDER)
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            found.open(ORDER, 0)

    assert os.listdir("/proc/self/fd") == before
    await found.finish()


async def test_pipe_that_nobody_reads_is_an_error_of_the_worker(
    screen: Screen, tmp_path: Path
) -> None:
    """A plug-in may name one: the agent waits for no reader, and takes nothing from one."""
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
    assert output.tail() == ""  # nobody writes there any more


async def test_terminals_that_cannot_be_had_are_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have none, and a terminal may be hung up: the worker runs all the same."""
    ours, theirs = os.openpty()
    outputs = WorkerOutputs(
        OutputSpec(), Consoles(Console(theirs), Console(theirs)), LogFolder(os.devnull, "job"), str
    )
    outputs.begin(ORDER)
    with outputs.open(ORDER, 0) as output:
        assert os.isatty(output.stderr_fd)
    before = os.listdir("/proc/self/fd")

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

    assert len(os.listdir("/proc/self/fd")) <= len(before)
    os.close(ours)
    os.close(theirs)
