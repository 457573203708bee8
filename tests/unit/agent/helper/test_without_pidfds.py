"""Signals to processes, and waits for their ends, in a Python that has no pidfds."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from rallypoint.agent.helper.descendants import await_any_exit, signal_verified


@pytest.fixture(autouse=True)
def no_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Python that was built on an old system, such as that of some conda channels."""
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(signal, "pidfd_send_signal")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_exit_is_noticed(process: subprocess.Popen[bytes]) -> None:
    """A process that lives, one that has ended and is not reaped, and one that is gone."""
    assert not await_any_exit([process.pid], 50)
    process.kill()

    assert await_any_exit([process.pid], 30_000)
    assert process.wait() == -signal.SIGKILL
    assert await_any_exit([process.pid], 0)


def test_signal_to_a_target_only(process: subprocess.Popen[bytes]) -> None:
    """The check decides; a process that is gone gets none."""
    assert not signal_verified(process.pid, signal.SIGKILL, lambda pid: False)
    assert signal_verified(process.pid, signal.SIGTERM, lambda pid: pid == process.pid)
    assert process.wait() == -signal.SIGTERM
    assert not signal_verified(process.pid, signal.SIGTERM, lambda pid: True)
