"""What workers are told is about to happen, where it cannot be written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from rallypoint.agent.core.model import Notice
from rallypoint.agent.environ import Launch
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.supervisor import Supervisor

NOTICES = (Notice("drain", "b", "maintenance", 1_000),)


def supervise(outputs: WorkerOutputs | None = None) -> Supervisor:
    """Return a supervisor of which only the notices are asked for."""
    nobody = cast(Any, None)
    return Supervisor(
        host=nobody,
        launch=Launch("train.py", ()),
        job_id="job",
        environment={},
        variables=tuple,
        post=nobody,
        tasks=nobody,
        outputs=outputs or nobody,
    )


def test_agents_own_folder_may_lie_below_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no temporary file can be made, but logs can: the job runs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    logs = LogFolder(str(tmp_path), "job")
    logs.path = tmp_path
    supervisor = supervise(WorkerOutputs(OutputSpec(), cast(Any, None), logs, node_name=str))
    supervisor.tell(1, NOTICES, "a")
    supervisor.oom.close()

    assert len(list(tmp_path.glob("own_*/1/notices.json"))) == 1


def test_notices_that_cannot_be_written_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent whose folder is full or gone goes on: its workers do without the notice."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    supervisor = supervise()
    supervisor.tell(1, NOTICES, "a")
    (folder,) = tmp_path.iterdir()
    assert (folder / "1" / "notices.json").exists()

    folder.rename(tmp_path / "gone")
    folder.touch()  # a file where the folder was: nothing can be made below it
    supervisor.tell(1, NOTICES, "a")
    supervisor.tell(1, (), "a")
    supervisor.oom.close()

    assert folder.is_file()
