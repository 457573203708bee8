"""`rallypoint stacks` on real jobs: which rank the others wait for, and where that one stands."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from rallypoint.cli.operator.failures import EXIT_NOT_FOUND
from support.processes.commands import RALLYPOINT
from support.processes.world import World

STANDING = Path(__file__).with_name("standing.py")
CULPRIT = 2
NODES, WORKERS = 2, 2
READY_S_MAX = 120.0


def stand(world: World, folder: Path, deed: str, *flags: str) -> None:
    """Start a job, and wait until its workers stand still or are about to."""
    folder.mkdir()
    script = (str(STANDING), str(folder), str(CULPRIT), deed)
    for name in ("a", "b"):
        world.agent(name, *flags, nnodes=str(NODES), nproc=WORKERS, script=script)
    ends_s = time.monotonic() + READY_S_MAX
    while sum(path.name.isdigit() for path in folder.iterdir()) < NODES * WORKERS:
        assert time.monotonic() < ends_s, "the workers do not get there"
        time.sleep(0.1)


def stacks(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return world.run(RALLYPOINT, "stacks", world.job_id, *words, "-c", world.target)


def read_until(world: World, wanted: str) -> str:
    """Return the evidence once its first line has this: a rank still has some steps to go."""
    ends_s = time.monotonic() + READY_S_MAX
    while True:
        ended = stacks(world)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
        if re.search(wanted, ended.stdout.partition("\n")[0]) or time.monotonic() > ends_s:
            return ended.stdout


CASES = {
    "asleep": ("has not entered", "load_batch"),
    "locked": ("has not entered", "hold_the_lock"),
    "fifo": ("has not entered", "wait_for_a_writer"),
    "stopped": ("stopped", ""),
    "barrier": ("barrier", "main"),
}


@pytest.mark.parametrize(
    "deed", [pytest.param(one, marks=() if one == "asleep" else pytest.mark.long) for one in CASES]
)
def test_rank_that_others_wait_for_is_named(world: World, tmp_path: Path, deed: str) -> None:
    """Whatever keeps it; and the line of code that it is in."""
    stand(world, tmp_path / "marks", deed)
    words, function = CASES[deed]
    text = read_until(world, rf"rank {CULPRIT}\b")
    first = text.splitlines()[0]

    assert re.search(rf"rank {CULPRIT}\b", first) and words in first, text
    assert function in text
    assert f"from {NODES * WORKERS} of {NODES * WORKERS} workers" in text


@pytest.mark.long
def test_forked_workers_and_one_rank_as_json(world: World, tmp_path: Path) -> None:
    """The evidence that was taken last can be read again, with everything about a rank."""
    stand(world, tmp_path / "marks", "asleep", "--preload=torch")
    read_until(world, rf"rank {CULPRIT}\b")
    ended = stacks(world, "--last", f"--rank={CULPRIT}", "-o", "json")
    found = json.loads(ended.stdout)

    assert CULPRIT == found["evidence"]["culprit"]
    (rank,) = found["ranks"]
    assert CULPRIT == rank["rank"]
    assert "load_batch" in [frame["function"] for frame in rank["threads"][0]["frames"]]
    assert "gloo:all_reduce" == rank["groups"][0]["latest"][0]["operation"]


@pytest.mark.long
def test_workers_that_are_not_armed(world: World, tmp_path: Path) -> None:
    """The command says so; what the kernel tells is there all the same."""
    stand(world, tmp_path / "marks", "asleep", "--evidence=off")
    text = stacks(world, "--rank=0").stdout

    assert "the worker is not armed" in text
    assert "processor time" in text


def test_job_without_workers(world: World) -> None:
    """There is nothing to look at, and the command says where to look instead."""
    world.agent("a", nnodes="2").wait_event("coordinator_reached")
    ended = stacks(world)

    assert ended.returncode == EXIT_NOT_FOUND
    assert "no workers of job" in ended.stderr and "explain" in ended.stderr
