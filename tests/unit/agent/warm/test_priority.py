"""A standby runs with the least priority while it imports, and gets its own back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rallypoint.agent.in_worker import STANDBY
from rallypoint.agent.warm.priority import end_low_priority

PROGRAM = """
import os, signal, sys
if "ignore" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.path.insert(0, sys.argv[1])
from rallypoint_priority import Priority
one = Priority()
def tell(*words):
    group = open("/proc/self/autogroup").read().split() if os.path.exists(
        "/proc/self/autogroup") else []
    print(os.sched_getscheduler(0), group[2] if len(group) > 2 else "-", *words, flush=True)
tell()
for line in sys.stdin:
    if line.strip() == "lower":
        one.lower()
        tell()
    elif line.strip() == "restore":
        tell(one.restore())
    else:
        tell()
"""
LOW = {str(os.SCHED_IDLE), str(os.SCHED_BATCH)}


class Child:
    """A process that changes its priority on request."""

    def __init__(self, *words: str, is_leader: bool) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, STANDBY, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=is_leader,
        )
        self.before = self.read()

    def read(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def do(self, deed: str) -> list[str]:
        """Return its policy and the nice value of its group after a deed."""
        assert self.process.stdin is not None
        self.process.stdin.write(deed + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture
def leader() -> Iterator[Child]:
    """A process that leads a session, as a standby does."""
    child = Child(is_leader=True)
    yield child
    child.end()


def test_priority_is_lowered_and_brought_back(leader: Child) -> None:
    """Its own, and that of its session: among other sessions only that counts."""
    policy, nice = leader.do("lower")

    assert policy in LOW
    assert nice == ("19" if leader.before[1] != "-" else "-")
    assert leader.do("restore") == leader.before


def test_session_of_others_keeps_its_priority() -> None:
    """A process that shares its session lowers only its own."""
    child = Child(is_leader=False)
    policy, nice = child.do("lower")

    assert policy in LOW
    assert nice == child.before[1]
    assert child.do("restore") == child.before
    child.end()


def test_program_that_ignores_its_children_keeps_its_way_back() -> None:
    """Whether it may leave SCHED_IDLE cannot be found out then, so it does not enter it."""
    child = Child("ignore", is_leader=True)
    policy, _ = child.do("lower")

    assert policy == str(os.SCHED_BATCH)
    assert child.do("restore") == child.before
    child.end()


async def test_low_priority_ends_from_outside(leader: Child) -> None:
    """A standby that imports for too long gets its share; it can bring back the rest itself."""
    leader.do("lower")
    await end_low_priority(leader.process.pid)  # the kernel takes one change in 0.1 s
    policy, nice = leader.do("look")

    assert policy == str(os.SCHED_BATCH)
    assert nice == leader.before[1]
    assert leader.do("restore") == leader.before


async def test_process_that_has_ended_has_no_priority(
    leader: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to do, and nothing to repeat."""
    leader.process.kill()
    leader.process.wait()
    monkeypatch.setattr(asyncio, "sleep", None)

    await end_low_priority(leader.process.pid)
