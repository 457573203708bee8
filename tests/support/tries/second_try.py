"""Run pytest; what fails runs once more, alone, and what passes only then is named.

`make test` and `make test-long` use it: `python tests/support/tries/second_try.py -n 6 -m long`.
All arguments are pytest's. One test of thousands that a busy machine has delayed does not refuse a
change, and everyone sees which one it was. The rules:

- At most `AGAIN_MAX` failed tests run again. More are a fault of the product.
- They run in a new process, one after the other, with no other test beside them.
- Only a run in which every test had its turn has a second try: none that was interrupted, that
  stopped at a failure (`-x`) or that could not import a test.
- What does not pass then, has failed. A test that is skipped then has not passed.

pytest-rerunfailures repeats a test at once, in the middle of all others, which have delayed it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

AGAIN_MAX = 10
_AGAIN = "--again"
"""The argument of the second process, and after it the failed tests as JSON."""


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Outcomes:
    """What became of the tests of one run: a plugin of the process that hears of all tests."""

    only: tuple[str, ...] = ()
    """The tests to run, as ids. Empty: those that the arguments name."""
    failed: dict[str, None] = field(default_factory=dict)
    """Ids of tests of which any part failed, in the order in which they did."""
    passed: set[str] = field(default_factory=set)
    """Ids of tests whose body passed. Their fixtures may have failed."""
    is_whole: bool = True
    """Whether every test was found and had its turn."""

    def pytest_configure(self, config: pytest.Config) -> None:
        if self.only:
            config.args[:] = self.only

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.is_whole = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.shouldfail or session.shouldstop:
            self.is_whole = False


def choose_again(outcomes: Outcomes, status: int) -> tuple[str, ...]:
    """Return the tests that run again, in the order in which they failed; none if the run stands.

    Args:
        outcomes: What became of the tests in the first run.
        status: pytest's exit code of that run.
    """
    if status != pytest.ExitCode.TESTS_FAILED or not outcomes.is_whole:
        return ()
    return tuple(outcomes.failed) if len(outcomes.failed) <= AGAIN_MAX else ()


def find_passed(outcomes: Outcomes, again: Sequence[str]) -> tuple[str, ...]:
    """Return those of the tests that ran again of which every part passed."""
    return tuple(test for test in again if test in outcomes.passed - outcomes.failed.keys())


def describe(again: Sequence[str], passed: Sequence[str]) -> str:
    """Return what a person reads after the second try."""
    lines = [f"passed only when alone: {len(passed)} of {len(again)} failed tests"]
    lines += [f"  {test}" for test in passed]
    if failed := [test for test in again if test not in passed]:
        lines.append(f"failed twice: {len(failed)}")
        lines += [f"  {test}" for test in failed]
    return "\n".join(lines)


def run_first(arguments: list[str]) -> int:
    """Run pytest; continue with the second try if there is one, else return pytest's exit code."""
    outcomes = Outcomes()
    status = int(pytest.main(arguments, plugins=[outcomes]))
    if again := choose_again(outcomes, status):
        print(f"second try: {len(again)} failed tests run again, alone", flush=True)
        # A new process: modules, threads and the environment are as in a first run.
        program = [sys.executable, __file__, _AGAIN, json.dumps(again), *arguments]
        os.execv(sys.executable, program)
    if status == pytest.ExitCode.TESTS_FAILED:
        print(f"no second try: the run was cut short, or more than {AGAIN_MAX} tests failed")
    return status


def run_again(again: tuple[str, ...], arguments: list[str]) -> int:
    """Run the failed tests one after the other; return 0 if all pass."""
    outcomes = Outcomes(only=again)
    status = int(pytest.main([*arguments, "-n", "0"], plugins=[outcomes]))
    passed = find_passed(outcomes, again)
    print(describe(again, passed))
    return status if len(passed) == len(again) else status or int(pytest.ExitCode.TESTS_FAILED)


def main(arguments: list[str]) -> int:
    """Run one of the two tries."""
    sys.path[0] = os.getcwd()  # as with `python -m pytest`, also in the processes of pytest-xdist
    if arguments[:1] == [_AGAIN]:
        return run_again(tuple(json.loads(arguments[1])), arguments[2:])
    return run_first(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
