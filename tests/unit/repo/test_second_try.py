"""The second try of `make test`: what fails once is named, what fails twice fails the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.tries.second_try import AGAIN_MAX, Outcomes, choose_again, describe, find_passed

PROGRAM = Path(__file__).parents[2] / "support" / "tries" / "second_try.py"
LIMIT_S = 120
ONCE = """
import os, pathlib, pytest

def has_run(name):
    mark = pathlib.Path(__file__).with_name(name)
    ran = mark.exists()
    mark.touch()
    return ran

def test_passes(): pass
"""
"""The beginning of a file of tests, some of which fail only when they run first."""


@pytest.mark.parametrize(
    ("status", "failures", "is_whole", "expected"),
    [
        (pytest.ExitCode.OK, 0, True, 0),
        (pytest.ExitCode.TESTS_FAILED, 1, True, 1),
        (pytest.ExitCode.TESTS_FAILED, AGAIN_MAX, True, AGAIN_MAX),
        (pytest.ExitCode.TESTS_FAILED, AGAIN_MAX + 1, True, 0),
        (pytest.ExitCode.TESTS_FAILED, 1, False, 0),
        (pytest.ExitCode.INTERRUPTED, 1, True, 0),
        (pytest.ExitCode.INTERNAL_ERROR, 1, True, 0),
        (pytest.ExitCode.NO_TESTS_COLLECTED, 0, True, 0),
    ],
)
def test_choice(status: int, failures: int, is_whole: bool, expected: int) -> None:
    """Few failures of a whole run have a second try; many, and those of other runs, have none."""
    outcomes = Outcomes(failed=dict.fromkeys(f"t{i}" for i in range(failures)), is_whole=is_whole)

    assert expected == len(choose_again(outcomes, status))


def test_passed_has_passed_in_every_part() -> None:
    """A test whose teardown failed has not passed, nor has one that did not run."""
    outcomes = Outcomes(failed={"teardown": None}, passed={"teardown", "good"})

    assert ("good",) == find_passed(outcomes, ["teardown", "good", "skipped"])


def test_description_names_every_test() -> None:
    """The last lines name what passed only when alone, and what failed twice."""
    expected = "passed only when alone: 1 of 2 failed tests\n  b\nfailed twice: 1\n  a"

    assert expected == describe(["a", "b"], ["b"])


def start(folder: Path, source: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "test_file.py").write_text(ONCE + source)
    for name in ("a", "b"):  # folders with a conftest.py each, as in this repository
        (folder / name).mkdir()
        (folder / name / "conftest.py").touch()
        (folder / name / f"test_{name}.py").write_text(f"def test_{name}(): pass\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # what it does not need takes most of its time
    options = [
        "-p",
        "xdist.plugin",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *options, *arguments],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, source: str, *arguments: str) -> tuple[int, str]:
    with start(folder, source, *arguments) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, output


def test_failed_once(tmp_path: Path) -> None:
    """What fails once is named, and the run passes; the rest runs once."""
    source = """
def test_once(): assert has_run("once")
@pytest.mark.parametrize("value", ["a::b[c] d"])
def test_once_with(value): assert has_run("with")
def test_never_twice(): assert not has_run("never")
"""
    status, output = run(tmp_path, source, "-n", "2")

    assert 0 == status, output
    named = output.partition("passed only when alone: 2 of 2 failed tests\n")[2]
    assert {"  test_file.py::test_once", "  test_file.py::test_once_with[a::b[c] d]"} == set(
        named.splitlines()
    )


def test_failed_twice(tmp_path: Path) -> None:
    """What fails twice, or does not run the second time, fails the run."""
    source = """
def test_always(): assert False
def test_skipped():
    if has_run("skipped"): pytest.skip("now")
    assert False
def test_once(): assert has_run("once")
"""
    status, output = run(tmp_path, source, "-n", "2")

    assert 1 == status, output
    named, _, failed = output.rpartition("failed twice: 2\n")
    assert ["  test_file.py::test_once"] == named.splitlines()[-1:]
    assert ["  test_file.py::test_always", "  test_file.py::test_skipped"] == sorted(
        failed.splitlines()
    )


def test_process_that_crashed(tmp_path: Path) -> None:
    """A test that ended its process of pytest-xdist runs again; the others run in another one."""
    source = """
def test_crashes():
    if not has_run("crashed"): os._exit(1)
def test_after(): has_run("after")
"""
    status, output = run(tmp_path, source, "-n", "1")

    assert 0 == status, output
    assert "passed only when alone: 1 of 1 failed tests\n  test_file.py::test_crashes" in output
    assert (tmp_path / "after").exists()


@pytest.mark.parametrize(
    ("source", "arguments", "expected"),
    [
        ("", ["-k", "nothing"], pytest.ExitCode.NO_TESTS_COLLECTED),
        ("def test_always(): assert False", ["-x"], pytest.ExitCode.TESTS_FAILED),
        ("raise ValueError('no module')", ["-n", "1"], None),
        ("", ["--no-such-option"], pytest.ExitCode.USAGE_ERROR),
    ],
)
def test_no_second_try(
    tmp_path: Path, source: str, arguments: list[str], expected: int | None
) -> None:
    """A run that is not whole has no second try, and fails as pytest does."""
    status, output = run(tmp_path, source, *arguments)

    assert status == expected or (expected is None and status != 0), output
    assert "again, alone" not in output


def test_interrupted(tmp_path: Path) -> None:
    """After Ctrl-C nothing runs again."""
    os.mkfifo(tmp_path / "begun")
    source = """
def test_always(): assert False
def test_waits():
    pathlib.Path(__file__).with_name("begun").write_text("now")
    import signal
    signal.pause()
"""
    with start(tmp_path, source, "-p", "no:xdist") as process:
        (tmp_path / "begun").read_text()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT_S)

    assert pytest.ExitCode.INTERRUPTED == process.returncode, output
    assert "again, alone" not in output
