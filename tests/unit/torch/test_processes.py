"""Four processes share a store: torch's functions and ours, process groups, and who is missing."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import support.stores
from support.stores.room import Room, rooms
from support.tries.commit import choose_long

SCRIPTS = Path(support.stores.__path__[0])
SIZE = 4
LAST = SIZE - 1
LIMIT_S = 240

pytestmark = pytest.mark.long  # four processes import torch


def run_ranks(room: Room, script: str, *arguments: str) -> list[dict[str, Any]]:
    """Return what each rank prints."""
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    environ = os.environ | room.environ | {"WORLD_SIZE": str(SIZE), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, env=environ | {"RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(SIZE)
    ]
    try:
        outputs = [one.communicate(timeout=LIMIT_S)[0] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert [0] * SIZE == [one.returncode for one in ranks]
    return [json.loads(output) for output in outputs]


def check_shared(answers: list[dict[str, Any]]) -> None:
    """Check that all ranks have the data of all, and waited for the slowest."""
    for answer in answers:
        assert [f"rank {rank}" for rank in range(SIZE)] == answer["short"]
        assert [[100_000, str(rank)] for rank in range(SIZE)] == answer["long"]
        assert [str(rank) for rank in range(SIZE)] == answer["gathered"]
        assert answer["seen"]


def test_functions_of_torch_work_unchanged() -> None:
    """The error of rank 0 names the missing rank, and the others refer to it."""
    from torch.distributed.elastic.utils import store as functions

    if "rank" not in inspect.signature(functions.barrier).parameters:
        pytest.skip("the barrier of this torch traces no missing ranks")
    with rooms(SIZE) as room:
        answers = run_ranks(room, "rank.py", "torch")
    check_shared(answers)
    first, *others, _ = answers

    text = (
        "Timed out waiting on barrier on rank 0, for key prefix: traced "
        f"(world_size={SIZE}, missing_ranks=[host{LAST}], timeout=6)"
    )
    assert text == first["traced"]
    assert f"missing_ranks=[{LAST}]" in first["named"]
    for other in others:
        assert "[<check rank 0 (host0) for missing rank info>]" in other["traced"]
    assert {"wait timeout after 6000ms, keys: unnamed/last_member"} == {
        one["unnamed"] for one in answers[:-1]
    }


@pytest.mark.parametrize(
    ("known", "named"),
    [
        pytest.param(
            SIZE, f"{LAST} on node n1", id="workers-of-an-agent", marks=choose_long("workers", 0, 2)
        ),
        pytest.param(2, f"{LAST}", id="workers-of-torchrun", marks=choose_long("workers", 1, 2)),
    ],
)
def test_our_functions_name_the_missing_to_every_rank(known: int, named: str) -> None:
    """Also where the coordinator knows only the nodes, as under torchrun."""
    with rooms(known) as room:
        answers = run_ranks(room, "rank.py", "ours")
    check_shared(answers)

    for rank, answer in enumerate(answers[:-1]):
        where = f"Timed out waiting on barrier on rank {rank}, for key prefix: "
        traced = f"traced (world_size={SIZE}, missing_ranks=[host{LAST}], timeout=6)"
        assert f"{where}{traced}" == answer["traced"]
        text = f"named (world_size={SIZE}, missing_ranks=[{named}], timeout=6)"
        assert f"{where}{text}" == answer["named"]
        assert "missing_ranks=[1 of unknown rank]" in answer["unnamed"]


def test_process_groups_meet_at_the_store() -> None:
    """Twice by the same URL, with ranks of the caller's, and with a store."""
    with rooms(SIZE) as room:
        answers = run_ranks(room, "group.py")

    total = float(sum(range(SIZE)))
    assert [[2 * total if rank < 2 else total] * 3 for rank in range(SIZE)] == [
        one["totals"] for one in answers
    ]
    assert list(reversed(range(SIZE))) == [one["swapped"] for one in answers]
