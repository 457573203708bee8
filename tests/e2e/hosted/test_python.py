"""The Python API brings a coordinator as the command does, for the back ends c10d and static."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.last_runs import FOLDER
from support.processes.world import World

PROGRAM = """
import os, sys
from rallypoint.elastic import LaunchConfig, elastic_launch

def find_place():
    return os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["RALLYPOINT_COORDINATOR"]

if __name__ == "__main__":
    config = LaunchConfig(
        min_nodes=2, max_nodes=2, nproc_per_node=1, run_id="api",
        rdzv_backend="c10d", rdzv_endpoint=sys.argv[1],
    )
    print(*elastic_launch(config, find_place)().values())
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, "localhost:1") as world:
        port = world.ports.reserve()
        world.ports.close()
        world.target = f"127.0.0.1:{port}"
        yield world


@pytest.mark.long
def test_program_on_two_nodes_needs_no_coordinator(world: World) -> None:
    """Both programs get a result, and nothing is left."""
    script = world.folder / "program.py"
    script.write_text(PROGRAM)
    programs = [
        world.start(f"program {number}", [sys.executable, str(script), world.target])
        for number in (1, 2)
    ]

    assert [program.wait() for program in programs] == [0, 0]
    assert sorted(program.stdout() for program in programs) == [
        f"('{rank}', '2', '{world.target}')" for rank in (0, 1)
    ]
    assert world.left() == []
    assert {path.name for path in (world.folder / "state" / "rallypoint").iterdir()} <= {FOLDER}
