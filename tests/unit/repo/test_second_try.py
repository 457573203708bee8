"""The second try of `make test`: one end-to-end test has one, and the record names it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.tries.record import RUNS, Run, Trial, read_runs, write_run
from support.tries.second_try import NO_SECOND_TRY, Outcomes, count_beside, refuse

PROGRAM = Path(__file__).parents[2] / "support" / "tries" / "second_try.py"
LIMIT_S = 120
TEST = "tests/e2e/test_file.py::test_once"
RAN = Run("2026-01-01 10:00:00", "c0ffee" * 7, ("-n", "6"), 0, 200.0, 3.0)
ONCE = """
import pathlib

def has_run(name):
    mark = pathlib.Path(__file__).with_name(name)
    ran = mark.exists()
    mark.touch()
    return ran
"""
"""The beginning of a file of tests, some of which fail only when they run first."""


@pytest.fixture(autouse=True)
def may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make nightly` and `make release` run these tests, too, and allow no second try."""
    monkeypatch.delenv(NO_SECOND_TRY, raising=False)


def needed(test: str) -> Run:
    trial = Trial(test, alone=True, loaded=True, traceback="E assert 0")
    return Run(RAN.date, RAN.commit, RAN.arguments, 0, 200.0, 3.0, trial)


def failed(*tests: str, is_whole: bool = True) -> Outcomes:
    return Outcomes(failed=dict.fromkeys(tests, "E assert 0"), is_whole=is_whole)


@pytest.mark.parametrize(
    ("outcomes", "status", "runs", "expected"),
    [
        (failed(TEST), 1, [], ""),
        (failed(TEST), 1, [needed("tests/e2e/other.py::test")], ""),
        (failed(TEST), 1, [needed(TEST), *[RAN] * RUNS], ""),
        (failed(TEST), 1, [needed(TEST), *[RAN] * (RUNS - 1)], "it needed one on 2026-01-01"),
        (failed(TEST, "tests/e2e/other.py::test"), 1, [], "2 tests failed"),
        (failed("tests/sim/test_shells.py::test"), 1, [], "fails only if something is wrong"),
        (failed("tests/unit/agent/test_x.py::test"), 1, [], "fails only if something is wrong"),
        (failed(TEST, is_whole=False), 1, [], "the run was cut short"),
        (failed(TEST), pytest.ExitCode.INTERRUPTED, [], "the run was cut short"),
        (failed(TEST), pytest.ExitCode.INTERNAL_ERROR, [], "the run was cut short"),
    ],
)
def test_choice(outcomes: Outcomes, status: int, runs: list[Run], expected: str) -> None:
    """One test that runs programs has a second try, unless it needed one lately."""
    why = refuse(outcomes, status, runs)

    assert expected in why if expected else why == ""


def test_releases_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable forbids the second try."""
    monkeypatch.setenv(NO_SECOND_TRY, "1")

    assert refuse(failed(TEST), 1, []) == f"{NO_SECOND_TRY} is set"


@pytest.mark.parametrize(
    ("arguments", "expected"), [((), 0), (("-n", "6"), 5), (("-m", "long", "-n", "2"), 1)]
)
def test_load(arguments: tuple[str, ...], expected: int) -> None:
    """The second try has as many processes beside it as the first had tests."""
    assert count_beside(arguments) == expected


def test_record_is_kept(tmp_path: Path) -> None:
    """What was written is read again, in its order."""
    path = tmp_path / "runs"
    assert read_runs(path) == []
    write_run(path, RAN)
    write_run(path, needed(TEST))

    assert read_runs(path) == [RAN, needed(TEST)]


def start(folder: Path, source: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "tests" / "e2e").mkdir(parents=True, exist_ok=True)
    (folder / "tests" / "e2e" / "test_file.py").write_text(ONCE + source)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # what it does not need takes most of its time
    env |= {"TEST_RUNS": str(folder / "runs"), "COMMIT": "c0ffee"}
    options = ["-p", "xdist.plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    options += ["--rootdir", str(folder), "--import-mode", "importlib"]
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


def test_flaky_test_is_forgiven_once(tmp_path: Path) -> None:
    """A test that fails now and then: the first run says so and passes, the next one is red."""
    source = "def test_once(): assert has_run('once'), 'it was early'\ndef test_good(): pass\n"
    status, output = run(tmp_path, source, "-n", "2")
    assert (status, "passed both times" in output) == (0, True), output
    (kept,) = (json.loads(line) for line in (tmp_path / "runs").read_text().splitlines())
    assert (kept["commit"], kept["trial"]["test"]) == ("c0ffee", TEST)
    assert "it was early" in kept["trial"]["traceback"]

    (tmp_path / "tests" / "e2e" / "once").unlink()
    status, output = run(tmp_path, source, "-n", "2")

    assert (status, f"within the last {RUNS} runs" in output) == (1, True), output
    last = json.loads((tmp_path / "runs").read_text().splitlines()[-1])
    assert (last["status"], last["failed"], last["trial"]) == (1, [TEST], None)


def test_what_fails_again_has_failed(tmp_path: Path) -> None:
    """So has what is skipped the second time, and what passes alone but not under load."""
    source = """
import pytest
def test_once():
    if has_run("first"): pytest.skip("now")
    assert False
"""
    status, output = run(tmp_path, source)

    assert (status, "failed again" in output) == (1, True), output


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_crash_of_the_tests_is_not_forgiven(tmp_path: Path, restarts: str) -> None:
    """Tests that had no turn may have been bad, too."""
    source = "import os\ndef test_once(): os.abort()\ndef test_good(): pass\n"
    status, output = run(tmp_path, source, "-n", "2", f"--max-worker-restart={restarts}")

    assert (status, "no second try: the run was cut short" in output) == (1, True), output
