"""`launch` in a real Jupyter kernel: the example notebook, and a cell that is interrupted."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbclient.util import ensure_async

from support.processes.world import World

EXAMPLE = Path(__file__).parents[3] / "examples" / "notebook.ipynb"
LIMIT_S = 120
WAITING = """
from rallypoint.elastic import launch

def wait(name):
    import os, socket, threading
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.sendto(str(os.getpid()).encode(), name)
    threading.Event().wait()

launch(wait, {name!r}, nproc=2)
"""


def text_of(cell: nbformat.NotebookNode, stream: str = "stdout") -> str:
    """Return what a cell shows: a stream, and its value."""
    shown = [one.text for one in cell.outputs if one.get("name") == stream]
    values = [one.data["text/plain"] for one in cell.outputs if one.output_type == "execute_result"]
    return "".join([*shown, *values])


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


@asynccontextmanager
async def kernel(world: World, notebook: nbformat.NotebookNode) -> AsyncIterator[NotebookClient]:
    """Run a kernel as a process of this test's world."""
    client = NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3")
    async with client.async_setup_kernel(env=world.env(), cwd=str(world.folder)):
        yield client


@pytest.mark.long  # a kernel, and workers that import torch
async def test_example_notebook_runs(world: World) -> None:
    """Every cell runs, with its lines in the cell: values, ranks, a restart and an error."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    async with kernel(world, notebook) as client:
        for index, cell in enumerate(notebook.cells):
            await client.async_execute_cell(cell, index)
    greeted, trained, restarted, failed = (
        text_of(cell) for cell in notebook.cells if cell.cell_type == "code"
    )

    for rank in range(4):
        assert f"[rank {rank}] Hello from rank {rank} of 4\n" in greeted
    assert greeted.startswith("round 1: 4 workers start\n") and greeted.endswith("[0, 1, 4, 9]")
    assert re.search(r"\[rank 0\] step 20: loss \d", trained)
    assert "round 1: rank 1 failed: ValueError: out of apples (exit code 1)\n" in restarted
    assert "round 2: 2 workers start, restart 1 of 1\n" in restarted
    assert restarted.endswith("['done', 'done']")
    assert "rank 1 of fail_once failed: ValueError: out of apples" in failed
    assert 'raise ValueError("out of apples")' in failed


@pytest.mark.long  # a kernel
async def test_interrupted_cell_leaves_no_process(world: World) -> None:
    """The cell raises KeyboardInterrupt, the workers are gone, and the next cell runs."""
    reports = world.folder / "reports"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(reports))
        line.setblocking(False)
        code = WAITING.format(name=str(reports))
        cells = [nbformat.v4.new_code_cell(code), nbformat.v4.new_code_cell("launch(len, '')")]
        async with kernel(world, nbformat.v4.new_notebook(cells=cells)) as client:
            with pytest.raises(ExceptionGroup) as errors:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(client.async_execute_cell(cells[0], 0))
                    loop = asyncio.get_running_loop()
                    pids = [int(await loop.sock_recv(line, 100)) for _ in range(2)]
                    assert client.km is not None
                    await ensure_async(client.km.interrupt_kernel())
            left = running(pids)
            await client.async_execute_cell(cells[1], 1)

    (error,) = errors.value.exceptions
    assert isinstance(error, CellExecutionError)
    assert (error.ename, left) == ("KeyboardInterrupt", [])
    assert "interrupted: all workers have been stopped\n" in text_of(cells[0])
    assert text_of(cells[1]).endswith("[0]")
