"""The coordinators of this host that an error names: those that live, with their jobs."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rallypoint.base.user_folders import find_host_name
from rallypoint.cli.operator.reads import here
from rallypoint.client.errors import NotAllowed
from rallypoint.v1 import job_pb2

JOBS = {40_001: ["digits"], 40_002: ["a", "b", "c"], 40_003: None}
"""Of each coordinator; None: it wants another proof."""
SILENT = 40_009


class FakeClient:
    """A client of one of them."""

    def __init__(self, endpoints: str, **options: Any) -> None:
        self._jobs = JOBS[int(endpoints.rpartition(":")[2])]

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def list_jobs(self) -> Iterator[job_pb2.JobSummary]:
        if self._jobs is None:
            raise NotAllowed("no")
        return iter([job_pb2.JobSummary(job_id=name) for name in self._jobs])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state folder of a user whose coordinators are those of JOBS."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("rallypoint.client.sync.Client", FakeClient)
    monkeypatch.setattr(
        here, "find_problem", lambda at, *rest: "refused" if at.endswith(str(SILENT)) else ""
    )
    home = tmp_path / "state/rallypoint"
    home.mkdir(parents=True, mode=0o700)
    return home


def make_folder(home: Path, name: str, held: ExitStack | None) -> None:
    """Make the folder of a coordinator; without `held`, of one that was killed."""
    (home / name).mkdir(mode=0o700)
    lock = home / name / "journal.sqlite-lock"
    lock.touch(mode=0o600)
    if held is not None:
        fcntl.flock(held.enter_context(lock.open()), fcntl.LOCK_EX)


def test_living_coordinators_are_named(home: Path) -> None:
    """With as many of their jobs as a line has room for."""
    with ExitStack() as held:
        make_folder(home, f"hosted-{find_host_name()}-40001", held)
        make_folder(home, "coordinator-40002", held)
        make_folder(home, f"hosted-{find_host_name()}-40003", held)

        assert here.find_here() == (
            "-c localhost:40001 (job digits), -c localhost:40002 (jobs a, b, …), -c localhost:40003"
        )


def test_others_are_not(home: Path) -> None:
    """One that was killed, one of another host, one that does not listen, and the default."""
    with ExitStack() as held:
        make_folder(home, f"hosted-{find_host_name()}-40001", None)
        make_folder(home, "hosted-other.example-40002", held)
        make_folder(home, f"hosted-{find_host_name()}-{SILENT}", held)
        make_folder(home, "coordinator-50051", held)

        assert here.find_here() == ""
