"""`rallypoint barrier` and `kv` beside the workers of a real job."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.processes.commands import RALLYPOINT
from support.processes.room import Room, start, wait_arrived
from support.processes.world import World

pytestmark = pytest.mark.long  # a dozen commands, each a process


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


def test_keys_need_the_token_of_a_worker(world: World) -> None:
    """In its environment, or that of a process here; without one the message says so."""
    _, workers = start(world)
    pid = str(workers[0].pid)
    secret = workers[0].env["RALLYPOINT_WORKER_TOKEN"]
    own = {name: workers[1].env[name] for name in ("RALLYPOINT_WORKER_TOKEN", "RALLYPOINT_EPOCH")}
    job, in_run = world.job_id, ("--scope", "run")
    refused = run(world, "kv", "list", job)
    done = run(world, "kv", "put", job, "ready/0", "né", *in_run, "--worker", pid)
    found = run(world, "kv", "get", job, "ready/0", *in_run, **own)
    listed = run(world, "kv", "list", job, *in_run, **own)
    near = run(world, "kv", "get", job, "ready/1", *in_run, **own)
    late = run(world, "kv", "get", job, "never", "--wait", "0.1", *in_run, **own)
    elsewhere = run(world, "kv", "list", "another", **own)
    no_worker = run(world, "kv", "list", job, "--worker", "1")
    deleted = run(world, "kv", "delete", job, "ready/0", *in_run, **own)
    again = run(world, "kv", "delete", job, "ready/0", *in_run, **own)

    assert (refused.returncode, refused.stderr) == (
        77,
        "rallypoint kv list: error: keys are for the workers of a job alone: name one that runs "
        "here, --worker PID, or set RALLYPOINT_WORKER_TOKEN\n",
    )
    assert done.stdout.startswith(f"{job}: key ready/0 is set, with revision "), done.stderr
    assert found.stdout == "né"
    assert listed.stdout.split()[:5] == ["KEY", "REVISION", "VERSION", "VALUE", "ready/0"]
    assert (near.returncode, near.stderr.rpartition("; ")[2]) == (3, "did you mean 'ready/0'?\n")
    assert (late.returncode, late.stdout) == (4, "")
    assert (elsewhere.returncode, no_worker.returncode) == (77, 77)
    assert elsewhere.stderr.endswith("; take that of a worker of this job: --worker PID\n")
    assert deleted.stdout == f"{job}: key ready/0 is deleted\n"
    assert again.stdout == f"{job}: key ready/0 does not exist; there is nothing to delete\n"
    assert all(secret not in one.stdout + one.stderr for one in (refused, done, found, listed))
