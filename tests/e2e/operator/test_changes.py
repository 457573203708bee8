"""`rallypoint cancel`, `restart`, `resize`, `drain`, `cordon` and `uncordon` on a real job."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.processes.commands import RALLYPOINT
from support.processes.jobs import is_started, node
from support.processes.world import World

pytestmark = pytest.mark.long  # a dozen commands, each a process
FLAGS = ("--max-restarts=3", "--shutdown-timeout=5", "--join-timeout=60")


def run(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return world.run(RALLYPOINT, *words, "-c", world.target)


def done(world: World, *words: str) -> str:
    """Run a command that must succeed, and return the line that it prints."""
    ended = run(world, *words)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert ended.stdout.count("\n") == 1, ended.stdout
    return ended.stdout.rstrip("\n")


def refused(world: World, code: int, *words: str) -> str:
    """Run a command that must fail with an exit code, and return the line that it prints."""
    ended = run(world, *words)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr.rstrip("\n").removeprefix(f"rallypoint {words[0]}: error: ")


def test_a_job_is_changed_from_a_shell(world: World) -> None:
    """Each change says in a line what it has done, and may be repeated."""
    job = world.job_id
    agents = [world.agent(name, *FLAGS, nnodes="1:3") for name in ("a", "b")]
    for agent in agents:
        agent.wait_event("coordinator_reached")
    world.jobs.wait(
        job, lambda found: len(found.nodes) == 2 and is_started(found, found.round.header.number)
    )
    first = world.jobs.get(job).round.header.number

    assert done(world, "restart", job, "--reason", "new data") == (
        f"{job}: round {first} is being stopped; the next one starts the workers again"
    )
    world.jobs.wait(job, lambda found: is_started(found, first + 1))
    assert refused(world, 1, "restart", job, "--round", str(first)) == (
        f"{job}: round {first + 1} is the latest, not {first}; nothing was done"
    )
    assert done(world, "resize", job, "2:4", "--max-restarts", "7") == (
        f"{job}: it takes 2:4 nodes now, and has 2; it may restart 7 times, 0 of them used"
    )
    answer = json.loads(run(world, "resize", job, "1:4", "-r", "tonight", "-o", "json").stdout)
    assert (answer["job"]["minNodes"], answer["job"]["maxNodes"]) == (1, 4)

    cordoned = f"{job}: node b is cordoned; later rounds do not include it"
    assert done(world, "cordon", job, "b", "-r", "bad memory") == cordoned
    assert done(world, "cordon", job, "b", "-r", "bad memory") == cordoned
    assert node(world.jobs.get(job), "b").health.reason == "bad memory"
    assert done(world, "uncordon", job, "b", "-r", "repaired") == (
        f"{job}: node b is admitted; later rounds may include it"
    )
    assert done(world, "drain", job, "b", "--drain-timeout", "0", "-r", "new kernel") == (
        f"{job}: node b leaves; workers that still run are stopped now"
    )
    assert agents[1].wait() == 0
    world.jobs.wait(job, lambda found: is_started(found, first + 2))

    events = run(world, "events", job, "-o", "json").stdout
    assert [
        text for text in ("restarts: tonight", "b was uncordoned: repaired") if text in events
    ] == [
        "restarts: tonight",
        "b was uncordoned: repaired",
    ]

    assert done(world, "cancel", job, "--reason", "enough") == (
        f"{job}: run 1 is cancelled; its node stops the workers, and the agents exit with 94"
    )
    assert agents[0].wait() == 94
    assert done(world, "cancel", job).startswith(f"{job}: run 1 is cancelled")
