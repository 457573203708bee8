"""Run pytest; one end-to-end test that fails may run again, and the run says that it did.

`make test` and `make test-long` use it: `python tests/support/tries/second_try.py -n 6 -m long`.
All arguments are pytest's. The rules:

- Only a test of `MAY_RUN_AGAIN` has a second try: it waits for processes, on a machine that others
  use. Whatever else fails has failed: a core or a simulation that fails once in a while has a bug.
- A run has one. A second test that fails makes it red, and so does a run that was cut short.
- The test runs again twice, in new processes: alone, and beside as many busy processes as it ran
  beside. It has to pass both times, for what breaks under load is broken.
- Each run is written down (`record.py`), with the traceback of the test that ran again. If the same
  test needed it in one of the last `RUNS` runs, the run is red.
- With `NO_SECOND_TRY=1` there is none. Releases set it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[2])

from support.tries.record import RUNS, Run, Trial, read_runs, record_path, write_run

MAY_RUN_AGAIN = (
    "tests/e2e/",
    "tests/docs/",
    "tests/unit/server/etcd/",
    "tests/unit/server/fleet/",
    "tests/unit/server/journal/",
)
"""Where tests run the real commands, or a real etcd."""
PARTS = ("setup", "call", "teardown")
NO_SECOND_TRY = "NO_SECOND_TRY"
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**6))"


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Outcomes:
    """What became of the tests of one run: a plugin of the process that hears of all tests."""

    only: str = ""
    """The test to run, as its id. Empty: those that the arguments name."""
    failed: dict[str, str] = field(default_factory=dict)
    """Tests of which any part failed, in the order in which they did, with how the first did."""
    passed: set[str] = field(default_factory=set)
    """Ids of tests whose body passed. Their fixtures may have failed."""
    is_whole: bool = True
    """Whether every test was found and had its turn."""

    def pytest_configure(self, config: pytest.Config) -> None:
        if self.only:
            config.args[:] = [self.only]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.is_whole = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, report.longreprtext)
            if report.when not in PARTS:  # pytest-xdist: its process crashed; others had no turn
                self.is_whole = False
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.shouldfail or session.shouldstop:
            self.is_whole = False


def refuse(outcomes: Outcomes, status: int, runs: Sequence[Run]) -> str:
    """Return why nothing runs again after a run that failed; nothing if its one test does.

    Args:
        outcomes: What became of the tests.
        status: pytest's exit code.
        runs: The runs before this one, the latest last.
    """
    if os.environ.get(NO_SECOND_TRY):
        return f"{NO_SECOND_TRY} is set"
    if status != pytest.ExitCode.TESTS_FAILED or not outcomes.is_whole:
        return "the run was cut short"
    if len(outcomes.failed) > 1:
        return f"{len(outcomes.failed)} tests failed, and one may run again"
    (test,) = outcomes.failed
    if not test.startswith(MAY_RUN_AGAIN):
        return "the test runs in one process, so it fails only if something is wrong"
    for run in reversed(runs[-RUNS:]):
        if run.trial and run.trial.test == test:
            return f"it needed one {describe_run(run)}, within the last {RUNS} runs"
    return ""


def describe_run(run: Run) -> str:
    """Return when a run was, and of which commit."""
    return f"on {run.date} at commit {run.commit[:10]}"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep processors busy, as other tests do."""
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_again(test: str, arguments: Sequence[str], beside: int) -> bool:
    """Run a test in a new process, without other tests; return whether every part of it passed."""
    environment = os.environ | {"SECOND_TRY_ONLY": test}
    kept = [one for one in arguments if not one.startswith("--junitxml=")]  # that of the whole run
    command = [sys.executable, __file__, *kept, "-n", "0"]
    with busy(beside):
        return subprocess.run(command, env=environment, check=False).returncode == 0


def run_only(test: str, arguments: list[str]) -> int:
    """Run one test; return 0 if it passes, so not if it is skipped."""
    outcomes = Outcomes(only=test)
    status = int(pytest.main(arguments, plugins=[outcomes]))
    has_passed = test in outcomes.passed - outcomes.failed.keys()
    return 0 if status == 0 and has_passed else 1


def count_beside(arguments: Sequence[str]) -> int:
    """Return how many tests ran beside each: one less than `-n` says."""
    for flag, value in pairwise(arguments):
        if flag == "-n" and value.isdecimal():
            return max(int(value) - 1, 0)
    return 0


def run_all(arguments: list[str]) -> int:
    """Run pytest, and a second try if there is one; return the exit code of both together."""
    path, outcomes, begun = record_path(), Outcomes(), time.monotonic()
    runs = read_runs(path)
    load = os.getloadavg()[0]
    status = int(pytest.main(arguments, plugins=[outcomes]))
    load = max(load, os.getloadavg()[0])
    trial = None
    if outcomes.failed and not (why := refuse(outcomes, status, runs)):
        ((test, traceback),) = outcomes.failed.items()
        beside = count_beside(arguments)
        print(f"second try: {test}, alone", flush=True)
        alone = run_again(test, arguments, 0)
        print(f"second try: {test}, beside {beside} busy processes", flush=True)
        loaded = run_again(test, arguments, beside)
        trial = Trial(test, alone=alone, loaded=loaded, traceback=traceback)
        status = 0 if alone and loaded else status
        verdict = "passed both times" if status == 0 else "failed again"
        print(f"second try: {test} {verdict}; {path} has its traceback")
    elif outcomes.failed:
        print(f"no second try: {why}")
    took, failed = time.monotonic() - begun, list(outcomes.failed)
    write_run(path, Run.now(arguments, status, took, load, trial, failed))
    return status


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # as with `python -m pytest`
    only = os.environ.pop("SECOND_TRY_ONLY", "")
    raise SystemExit(run_only(only, sys.argv[1:]) if only else run_all(sys.argv[1:]))
