"""Where a run of the tests spends its time: printed at the end of each run, with its budget.

Each test is charged the processor time of its process and of the children that it waited for,
which hardly depends on what else the machine does, and the seconds that it took, which do.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

SLOWEST = 10
_CPU = "cpu_s"


def _cpu_s() -> float:
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Meter:
    """Measures each test, in the process that runs it."""

    _begun: float = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._begun = _cpu_s()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":  # the report that pytest makes of it next carries this
            item.user_properties.append((_CPU, round(_cpu_s() - self._begun, 3)))


@dataclass(eq=False)
class Times:
    """Adds up what all tests of a run took, in the process that hears of all."""

    budget_s: float | None = None
    wall: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of each test, its fixtures included."""
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds of processors that each test took."""
    _begun: float = field(default_factory=time.monotonic)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.wall[report.nodeid] += report.duration
        if report.when == "teardown":
            self.cpu[report.nodeid] = float(dict(report.user_properties).get(_CPU, 0.0))  # type: ignore[arg-type]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        took = time.monotonic() - self._begun
        terminalreporter.section("time")
        for line in describe(self.wall, self.cpu):
            terminalreporter.write_line(line)
        line = f"{took:.0f} s, {sum(self.cpu.values()):.0f} s of processors"
        if self.budget_s is None:
            terminalreporter.write_line(line)
        elif took <= self.budget_s:
            terminalreporter.write_line(f"{line}; the budget is {self.budget_s:.0f} s")
        else:
            over = f"{line}: OVER THE BUDGET of {self.budget_s:.0f} s"
            terminalreporter.write_line(over, red=True, bold=True)


def describe(wall: dict[str, float], cpu: dict[str, float]) -> list[str]:
    """Return lines on the folders, by what they took of the processors, and the slowest tests."""
    folders: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for test, seconds in wall.items():
        folder = "/".join(test.partition("::")[0].split("/")[:3])
        sums = folders[folder]
        sums[0] += seconds
        sums[1] += cpu.get(test, 0.0)
        sums[2] += 1
    lines = ["  seconds  of processors  tests  folder"]
    for folder, (seconds, of_cpu, count) in sorted(folders.items(), key=lambda one: -one[1][1]):
        lines.append(f"  {seconds:7.0f}  {of_cpu:13.0f}  {count:5.0f}  {folder}")
    lines.append(f"the {SLOWEST} slowest tests, in seconds")
    for test, seconds in sorted(wall.items(), key=lambda one: -one[1])[:SLOWEST]:
        lines.append(f"  {seconds:7.1f}  {test}")
    return lines
