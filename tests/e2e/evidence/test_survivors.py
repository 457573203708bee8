"""The log of an agent says where a worker stands that does not end by a stop signal."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from support.evidence.node import running
from support.processes.world import World

STUBBORN = Path(__file__).with_name("stubborn.py")
GRACE_S = 3
READY_S_MAX = 60.0


def test_worker_that_ignores_the_signal_is_named_before_it_is_killed(
    world: World, tmp_path: Path
) -> None:
    """With the line of its program; and the kill is not delayed."""
    agent = world.agent("a", f"--shutdown-timeout={GRACE_S}", script=(str(STUBBORN), str(tmp_path)))
    ends_s = time.monotonic() + READY_S_MAX
    while not (tmp_path / "0").exists():
        assert time.monotonic() < ends_s, "the worker does not start"
        time.sleep(0.05)
    agent.signal(signal.SIGTERM)

    assert agent.wait() == 128 + signal.SIGTERM
    (line,) = agent.events("worker_survived_stop")
    assert (line["rank"], line["local_rank"], line["then"]) == (0, 0, "SIGKILL")
    assert line["at"] == f"stubborn.py:{find_line('time.sleep')} load_batch"
    assert world.left() == []


def find_line(text: str) -> int:
    lines = STUBBORN.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


async def test_end_without_a_core_names_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the worker that has ended, nor when there is no time."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with running(tmp_path, ("stubborn", "asleep")) as node:
        pid = node.pid(0)
        with capture_logs() as lines:
            await node.supervisor.end_workers(GRACE_S)
        with capture_logs() as later:
            await node.supervisor.end_workers(0)

    assert [line["event"] for line in lines] == ["worker_survived_stop", "workers_survived_stop"]
    assert (lines[0]["rank"], lines[0]["pid"]) == (0, pid)
    assert lines[0]["at"].startswith("doing.py:")
    assert [line["event"] for line in later] == ["workers_survived_stop"]
