"""The folders for the output of workers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from rallypoint.agent.output.log_folder import LogFolder
from support.core.orders import run_order

ORDER = run_order()


def test_no_folder_is_ever_used_twice(tmp_path: Path) -> None:
    """A later round with the same restart count gets another folder."""
    folder = LogFolder(str(tmp_path), "job")
    names = [
        Path(str(folder.begin(run_order(number=number, restart_count=count), "n7"))).name
        for number, count in ((1, 0), (4, 0), (5, 1), (7, 0))
    ]

    assert names == ["attempt_0", "attempt_0_round_4", "attempt_1", "attempt_0_round_7"]
    assert folder.path is not None and folder.path.parent == tmp_path
    assert sorted(path.name for path in (folder.path / "attempt_1").iterdir()) == ["0", "1"]
    folder.close()
    assert folder.path.exists()


def test_names_are_safe(tmp_path: Path) -> None:
    """The name of a job may hold any character."""
    folder = LogFolder(str(tmp_path), "../../etc/pass wd\0" + "ä" * 300)
    folder.begin(ORDER, "node/7")
    (name,) = os.listdir(tmp_path)

    assert name.startswith(".._.._etc_pass_wd__") and "_node_7_" in name


def test_what_was_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a log dir, empty folders are removed at the end, and nothing else."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = LogFolder("", "job")
    path = Path(str(folder.begin(ORDER, "n7")))
    folder.begin(run_order(number=2, restart_count=1), "n7")
    (path / "1" / "error.json").write_text("{}")
    folder.close()
    (left,) = [path for path in tmp_path.rglob("*") if not path.is_dir()]

    assert left == path / "1" / "error.json"
    assert os.listdir(path) == ["1"] and os.listdir(path.parent) == ["attempt_0"]


def test_empty_folders_go_when_their_round_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that restarts often leaves none behind; what holds a file stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = LogFolder("", "job")
    for number in range(1, 4):
        begun = folder.begin(run_order(number=number, local_world_size=2), "node")
        assert begun is not None
        if number == 2:
            (Path(begun) / "1" / "error.json").touch()
        folder.end_round()
    assert folder.path is not None

    assert [str(path.relative_to(folder.path)) for path in sorted(folder.path.rglob("*"))] == [
        "attempt_0",
        "attempt_0/1",
        "attempt_0/1/error.json",
    ]


def test_check_finds_out_whether_folders_can_be_made(tmp_path: Path) -> None:
    """It leaves nothing; where nothing can be made, it says why."""
    LogFolder(str(tmp_path), "job").check(2)
    assert list(tmp_path.iterdir()) == []

    with pytest.raises(FileNotFoundError):
        LogFolder(str(tmp_path / "missing"), "job").check(2)


CHECKS = textwrap.dedent("""
    import os, resource, sys
    from rallypoint.agent.output.log_folder import LogFolder
    folder, free = LogFolder(sys.argv[1], "job"), os.dup(0)
    os.close(free)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for limit in (free + 12, free + 100):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        try:
            folder.check(8)
            print("passed")
        except OSError as error:
            print(error.errno)
    print(os.listdir(sys.argv[1]))
""")


def test_check_needs_as_many_descriptors_as_a_round(tmp_path: Path) -> None:
    """Files that can be made one after the other may be too many at once."""
    program = [sys.executable, "-c", CHECKS, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == [str(errno.EMFILE), "passed", "[]"]
