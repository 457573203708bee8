"""The file of a worker's stacks may be anything; a signal follows only if it is as it should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rallypoint.agent.evidence.dump import SIGNUM, StackDump
from rallypoint.agent.evidence.target import Target
from rallypoint.agent.in_worker.preload.rallypoint_armed import SIGURG
from rallypoint.agent.output.outputs import WorkerOutput


def dump(folder: Path) -> StackDump:
    """Return the dump of a worker that is this process."""
    return StackDump(Target(1, 0, 0, 1, os.getpid(), str(folder / "w"), WorkerOutput("")))


def test_signal_is_the_one_that_workers_handle() -> None:
    """They have its number, because the module `signal` takes long to load."""
    assert SIGNUM == SIGURG


def test_what_was_appended_is_read_and_cut_off(tmp_path: Path) -> None:
    """An answer that came too late is not read with the next one."""
    path = tmp_path / "w.stacks"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"%d\nlate" % fd)
    one = dump(tmp_path)
    try:
        assert one.begin() == ""
        assert not one.look()
        os.write(fd, b"stacks")
        assert [one.look(), one.look()] == [False, True]
        assert one.finish() == "stacks"
        assert path.read_bytes() == b"%d\n" % fd
    finally:
        one.close()
        os.close(fd)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "it is not armed: it still starts, or runs no Python, or another program"),
        (b"", "it has not been armed completely"),
        (b"7", "it has not been armed completely"),
        (b"x\n", "it has not been armed completely"),
        (b"99999\n", "it has closed its file"),
        (b"1\n", "it has closed its file"),
    ],
)
def test_file_without_a_writer(tmp_path: Path, content: bytes | None, expected: str) -> None:
    """The number at its beginning must be a descriptor of it."""
    if content is not None:
        (tmp_path / "w.stacks").write_bytes(content)
    one = dump(tmp_path)

    assert one.begin() == expected
    one.close()


def test_other_kinds_of_files(tmp_path: Path) -> None:
    """None is followed, none is waited for."""
    path, one = tmp_path / "w.stacks", dump(tmp_path)
    os.mkfifo(path)
    assert one.begin() == "its file is not a regular file"
    one.close()
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert one.begin() == "Too many levels of symbolic links"
    path.unlink()
    path.mkdir()
    assert one.begin() == "Is a directory"
