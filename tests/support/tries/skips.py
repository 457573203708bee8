"""Which tests may be skipped, and where. Any other skip makes a run red.

A test that is always skipped tests nothing. What the machine of a developer may lack,
that of continuous integration (`TEST_MACHINE=ci`) has, but for what `EVERYWHERE` lists.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field

import pytest

EVERYWHERE = (
    r"a worker for each processor, and the record has another number of processors",
    r".* not installed: make test-frameworks",
    r"torchx: make nightly installs it",
    r"no freezer cgroup of version 1 here: Slurm's signals reach workers too",
    r"compares with functions that only torch 2\.13 has",
    r"this torch filters no logs",
    r"the barrier of this torch traces no missing ranks",
    r"the (page|table) is about the (events|stores) of torch 2\.13",
    r"no systemd-analyze here: install systemd",
    r"needs kubectl",
    r"(zsh|fish) is not installed",
    r"this machine has no PCI device",
)
"""Reasons that depend on hardware, on a cluster or on what another target installs."""
OF_DEVELOPERS = (
    r"(mounting a disk )?needs root.*",
    r"only root can give files away",
    r"needs root, unshare and nsenter",
    r"needs the right to make namespaces",
    r".*network namespaces.*",
    r".*Slurm.*",
    r"this host has no IPv6",
    r"torch is not installed",
    r"\w+ is not installed",
    r"the numbers of system calls are those of x86-64",
    r"ptrace is not allowed here",
    r"this machine does not let us make a memory cgroup",
    r"the kernel's log may not be read here",
    r"this file system has no access lists",
)
"""Reasons that the machine of a developer may have, besides."""


def choose_allowed(machine: str) -> re.Pattern[str]:
    """Return what may be the reason of a skip on a machine: `ci`, or any other name."""
    reasons = EVERYWHERE if machine == "ci" else (*EVERYWHERE, *OF_DEVELOPERS)
    return re.compile("|".join(f"(?:{one})" for one in reasons))


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Skips:
    """Counts the skips of a run; ends it as failed if one is not listed."""

    machine: str = field(default_factory=lambda: os.environ.get("TEST_MACHINE", ""))
    reasons: Counter[str] = field(default_factory=Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._count(report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._count(report.longrepr)

    def _count(self, found: object) -> None:
        reason = found[2] if isinstance(found, tuple) else str(found)
        self.reasons[str(reason).removeprefix("Skipped: ")] += 1

    def unlisted(self) -> list[str]:
        """Return the reasons that are not listed for this machine."""
        allowed = choose_allowed(self.machine)
        return sorted(reason for reason in self.reasons if not allowed.fullmatch(reason))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.reasons:
            return
        terminalreporter.section("skipped")
        unlisted = self.unlisted()
        for reason, count in sorted(self.reasons.items()):
            is_red = reason in unlisted
            mark = "NOT LISTED in tests/support/tries/skips.py: " if is_red else ""
            terminalreporter.write_line(f"{count:7}  {mark}{reason}", red=is_red)
