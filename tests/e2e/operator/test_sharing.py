"""`rallypoint barrier` beside the workers of a real job."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.processes.commands import SCRIPTS
from support.processes.room import Room, start, wait_arrived
from support.processes.world import World

pytestmark = pytest.mark.long  # a dozen commands, each a process
RALLYPOINT = str(SCRIPTS / "rallypoint")


def run(world: World, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return world.run(RALLYPOINT, *words, "-c", world.target, env=env)


def test_who_waits_for_whom_is_shown(world: World) -> None:
    """Without any token; a barrier that is not open suggests those that are."""
    _, workers = start(world)
    room = Room(world, workers)
    assert run(world, "barrier", "list", world.job_id).stderr == (
        f"no worker of {world.job_id} waits at a barrier now\n"
    )
    room.tell("barrier", "loaded", "60", ranks=[0, 1, 3])
    wait_arrived(world, "loaded", 3)
    listed = run(world, "barrier", "list", world.job_id)
    shown = run(world, "barrier", "show", world.job_id, "loaded")
    missing = run(world, "barrier", "show", world.job_id, "load")
    answer = json.loads(run(world, "barrier", "list", world.job_id, "-o", "json").stdout)
    room.tell("barrier", "loaded", "60", ranks=[2])
    room.answers()

    assert listed.stdout.split()[7:11] == ["loaded", "round", "1", "1"]
    assert listed.stdout.rstrip().endswith("rank 2")
    assert "arrived     3 of 4\n            ranks 0-1,3\nmissing     rank 2\n" in shown.stdout
    assert missing.returncode == 3
    assert missing.stderr.endswith("at barrier 'load' now; did you mean 'loaded'?\n")
    assert answer[0]["arrivedCount"] == 3
