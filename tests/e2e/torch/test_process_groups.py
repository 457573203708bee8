"""Process groups over the store, in workers of an agent and of an unmodified torchrun."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import support.stores
from support.processes.commands import Command
from support.processes.world import World
from support.torchrun.plugin import DOOR
from support.tries.commit import choose_long

GROUP = str(Path(support.stores.__path__[0]) / "group.py")
ALONE = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
LIMIT_S = 240.0


def start_agents(world: World) -> list[Command]:
    return [
        world.agent(name, nnodes="2", nproc=2, script=(GROUP,), env=ALONE) for name in ("a", "b")
    ]


def start_torchruns(world: World) -> list[Command]:
    argv = [
        *(sys.executable, "-m", "torch.distributed.run", *DOOR, "--nnodes=2"),
        *("--rdzv-backend=rallypoint", f"--rdzv-endpoint={world.target}"),
        *(f"--rdzv-id={world.job_id}", "--nproc-per-node=2", GROUP),
    ]
    return [world.start(f"torchrun {name}", argv, ALONE) for name in ("a", "b")]


@pytest.mark.parametrize(
    "start",  # four workers import torch
    [
        pytest.param(start, marks=choose_long("process groups", at, 2), id=start.__name__)
        for at, start in enumerate((start_agents, start_torchruns))
    ],
)
def test_workers_meet_at_the_store(world: World, start: Callable[[World], list[Command]]) -> None:
    """By `rallypoint://` and with a store: the environment has what they need."""
    commands = start(world)
    for command in commands:
        code = command.wait(LIMIT_S)
        assert 0 == code, "\n".join(one.stderr() for one in commands)
    lines = [line for command in commands for line in command.stdout().splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]

    assert [[6.0] * 3] * 2 + [[12.0] * 3] * 2 == sorted(one["totals"] for one in found)
    assert [0, 1, 2, 3] == sorted(one["swapped"] for one in found)
    (round,) = world.jobs.get(world.job_id).history
    is_marked = round.timeline.HasField("process_group")
    assert is_marked == (start is start_agents)  # torchrun has more workers than are counted
