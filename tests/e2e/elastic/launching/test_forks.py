"""Functions start by fork, again and again, from programs whose threads are inside gRPC."""

from __future__ import annotations

import sys

import nbformat
import pytest
from nbclient import NotebookClient

from support.processes.world import World

LIMIT_S = 300
LAUNCHES = 10
TORCH = """
import os, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from rallypoint.torch.rendezvous import register

def rank():
    return int(os.environ["RANK"])

if __name__ == "__main__":
    register()
    for number in range(int(sys.argv[2])):
        config = LaunchConfig(
            1, 1, 3, run_id=f"forks-{number}", rdzv_backend="rallypoint", max_restarts=0,
            rdzv_endpoint=sys.argv[1], rdzv_configs={"last_call_timeout": 1},
            start_method="fork", monitor_interval=0.05, local_addr="127.0.0.1",
        )
        print(*sorted(elastic_launch(config, rank)().values()))  # torch: as they end
"""
HELD = """
import os, sys
from rallypoint.elastic import (
    LaunchConfig, RendezvousParameters, elastic_launch, get_rendezvous_handler,
)

def rank():
    return int(os.environ["RANK"])

if __name__ == "__main__":
    place = RendezvousParameters("rallypoint", sys.argv[1], "held", 1, 1)
    handler = get_rendezvous_handler(place)
    handler.next_rendezvous()
    config = LaunchConfig(1, 1, 3, start_method="fork", max_restarts=0)
    for _ in range(int(sys.argv[2])):
        print(*elastic_launch(config, rank)().values())
    handler.shutdown()
"""
CELL = """
import os
from rallypoint.elastic import launch

for _ in range({launches}):
    print(*launch(lambda: int(os.environ["RANK"]), nproc=3, start_method="fork"))
"""


@pytest.mark.parametrize(
    "program",
    [pytest.param(TORCH, id="torch", marks=pytest.mark.nightly), pytest.param(HELD, id="held")],
)
def test_functions_survive_their_fork(world: World, program: str) -> None:
    """All workers of ten launches return: under torch's agent, and beside a handler's round."""
    script = world.folder / "program.py"
    script.write_text(program)
    done = world.run(sys.executable, str(script), world.target, str(LAUNCHES))

    assert ["0 1 2"] * LAUNCHES == done.stdout.splitlines(), done.stderr


@pytest.mark.long  # a kernel
def test_functions_of_a_notebook_survive_their_fork(world: World) -> None:
    """The kernel keeps the threads of earlier launches."""
    cell = nbformat.v4.new_code_cell(CELL.format(launches=LAUNCHES))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3").execute(
        env=world.env(), cwd=str(world.folder)
    )
    shown = "".join(one.text for one in cell.outputs if one.get("name") == "stdout")

    assert shown.splitlines().count("0 1 2") == LAUNCHES, shown
