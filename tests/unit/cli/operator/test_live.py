"""The live view of a job on terminals of several sizes."""

from __future__ import annotations

import pytest
from rich.console import Console

from rallypoint.cli.operator.reads.live import NODES_MIN, fit
from rallypoint.cli.operator.views.status import Extent, render_status
from rallypoint.server.core.model.spec import JobSpec
from support.operator import scenes


@pytest.mark.parametrize(("columns", "lines"), [(80, 30), (80, 50), (200, 24), (60, 40)])
def test_whole_view_fits(columns: int, lines: int) -> None:
    """However many lines the facts take, such as a wait that names 16 nodes."""
    bench, agents = scenes.running(JobSpec(min_nodes=30, max_nodes=40, max_restarts=3), nodes=40)
    agents[33].fail()
    bench.advance(100)
    job = scenes.show(bench)
    console = Console(width=columns, height=lines)
    extent = fit(console, job, job.nodes, Extent(nodes=None, rounds=5))
    shown = console.render_lines(render_status(job, job.nodes, extent))

    assert extent.nodes is not None and extent.nodes > NODES_MIN
    assert lines - 1 <= len(shown) <= lines
