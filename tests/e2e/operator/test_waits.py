"""`--wait` on a real job: a command returns when its change has come true."""

from __future__ import annotations

import json
import subprocess

import pytest

from rallypoint.base.exit_codes import EXIT_CANCELLED
from support.processes.commands import RALLYPOINT
from support.processes.jobs import is_started
from support.processes.world import World

pytestmark = pytest.mark.long  # a dozen commands, each a process
FLAGS = ("--max-restarts=3", "--shutdown-timeout=5", "--join-timeout=60")


def run(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return world.run(RALLYPOINT, *words, "-c", world.target)


def waited(world: World, *words: str) -> list[str]:
    """Run a command that must succeed, and return its first and its last line."""
    ended = run(world, *words, "--wait")
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    lines = ended.stdout.splitlines()
    return [lines[0], lines[-1]]


def test_changes_are_awaited(world: World) -> None:
    """What each says at its end is true at once, without another look."""
    job = world.job_id
    agents = [world.agent(name, *FLAGS, nnodes="1:3") for name in ("a", "b")]
    for agent in agents:
        agent.wait_event("coordinator_reached")
    first = world.jobs.wait(
        job, lambda found: len(found.nodes) == 2 and is_started(found, found.round.header.number)
    ).round.header.number

    assert waited(world, "restart", job) == [
        f"{job}: round {first} is being stopped; the next one starts the workers again",
        f"{job}: round {first + 1} runs 2 workers on 2 nodes",
    ]
    assert (
        waited(world, "resize", job, "1")[1] == f"{job}: round {first + 2} runs 1 worker on 1 node"
    )
    assert waited(world, "resize", job, "1:2")[1] == (
        f"{job}: round {first + 3} runs 2 workers on 2 nodes"
    )
    assert waited(world, "drain", job, "b", "--drain-timeout", "1")[1] == f"{job}: node b has left"
    assert [node.name for node in world.jobs.get(job).nodes] == ["a"]
    assert agents[1].wait() == 0

    late = run(world, "resize", job, "3", "--force", "--wait-timeout", "0.5")
    assert late.returncode == 4, late.stderr
    assert "not done after 500ms" in late.stderr
    assert late.stderr.endswith(
        f"; the change continues: rallypoint -c {world.target} status {job}\n"
    )
    assert world.jobs.get(job).spec.min_nodes == 3

    ended = run(world, "cancel", job, "--wait", "-o", "json")
    assert (ended.returncode, ended.stderr) == (0, "")
    summary = json.loads(ended.stdout)["job"]
    assert (summary["outcome"], summary["nodeCount"]) == ("OUTCOME_CANCELLED", 0)
    assert agents[0].wait() == EXIT_CANCELLED
