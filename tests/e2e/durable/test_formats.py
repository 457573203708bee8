"""The journal of every released format opens, as a coordinator of that release left it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rallypoint.client.sync import Client
from rallypoint.server.journal.codec.batches import FORMAT
from support.journal.write_file import CREATED, DONE, FILE, RUNNING
from support.journal.write_format import FORMATS
from support.processes.commands import SCRIPTS
from support.processes.world import World


@pytest.mark.parametrize("format", range(1, FORMAT + 1))
def test_journal_of_a_release_opens(format: int, world: World, tmp_path: Path) -> None:
    """With its jobs, what has happened to them, and what an operator has asked for."""
    state = tmp_path / "state" / FILE
    state.parent.mkdir()
    shutil.copyfile(FORMATS / str(format) / FILE, state)
    verified = world.run(str(SCRIPTS / "rallypoint"), "journal", "verify", f"sqlite:{state}")
    coordinator = world.coordinator(0, f"--state=sqlite:{state}")
    with Client(world.target) as client:
        running = client.get_job(RUNNING).job
        created = client.get_job(CREATED).job
        events = [event.WhichOneof("detail") for event in client.list_events(DONE)]
        health = {one.node_name: one.cordoned for one in running.health}

    assert (verified.returncode, verified.stderr) == (0, "")
    assert f"format      {format}\n" in verified.stdout
    assert "jobs        3 (1 forming, 1 running, 1 closed)\n" in verified.stdout
    assert (created.spec.min_nodes, created.spec.max_nodes) == (2, 4)
    assert [running.job_id, running.run, health] == [RUNNING, 1, {"c": True}]
    assert events.count("round_sealed") == 2 and "run_closed" in events
    assert coordinator.is_running(), coordinator.stderr()
