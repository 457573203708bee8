"""Notices to workers, where they cannot be written as usual."""

from __future__ import annotations

import asyncio
import os
from glob import glob
from pathlib import Path
from typing import Any, cast

import pytest

from rallypoint.agent.core.desired import Notice
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.supervisor import Supervisor

NOTICES = (Notice("drain", "b", "maintenance", 1_000),)


def supervise(tasks: asyncio.TaskGroup, outputs: WorkerOutputs | None = None) -> Supervisor:
    """Return a supervisor that can only write notices."""
    unused = cast(Any, None)
    return Supervisor(
        host=unused,
        launch=Launch("train.py", ()),
        job_id="job",
        environment={},
        variables=tuple,
        post=unused,
        tasks=tasks,
        outputs=outputs or unused,
    )


async def test_agents_own_folder_may_lie_below_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's folder is made below the logs when no temporary folder can be made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    logs = LogFolder(str(tmp_path), "job")
    logs.path = tmp_path
    outputs = WorkerOutputs(OutputSpec(), cast(Any, None), logs, node_name=str)
    async with asyncio.TaskGroup() as tasks:
        supervise(tasks, outputs).tell(1, NOTICES, "a")

    assert len(glob(f"{tmp_path}/own_*/1/notices.json")) == 1


async def test_notices_that_cannot_be_written_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent whose folder is full or gone keeps running; its workers get no notice."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with asyncio.TaskGroup() as tasks:
        supervisor = supervise(tasks)
        supervisor.tell(1, NOTICES, "a")
        await supervisor.notices_written()
        folder = tmp_path / os.listdir(tmp_path)[0]
        assert (folder / "1" / "notices.json").exists()

        folder.rename(tmp_path / "gone")
        folder.touch()  # a file where the folder was: nothing can be made below it
        supervisor.tell(1, NOTICES, "a")
        supervisor.tell(1, (), "a")

    assert folder.is_file()


async def test_last_notices_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices are written in the order in which they arrive."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with asyncio.TaskGroup() as tasks:
        supervisor = supervise(tasks)
        for _ in range(20):
            supervisor.tell(1, NOTICES, "a")
            supervisor.tell(1, (), "a")
        await supervisor.notices_written()

        assert glob(f"{tmp_path}/*/1/notices*") == []
