"""A case as real processes, with torch's API or with ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.elastic.program import api
from support.elastic.program.case import Case
from support.elastic.program.run import MODULES
from support.processes.world import World

PROGRAM = Path(__file__).parent / "program"
RUN_LIMIT_S = 240.0
"""For one case to end: far beyond what is expected, so that a busy machine passes."""


def run_case(case: Case, which: str, folder: Path, coordinator: str) -> list[Any]:
    """Run a case, end whatever it has left, and return what came of it, for each node.

    Nodes of one kind are in any order: which of them comes first is up to the launcher.

    Args:
        which: `api.TORCH` or `api.RALLYPOINT`.
        coordinator: address for a case of several nodes with our API.
    """
    assert MODULES
    folder.mkdir(exist_ok=True)
    with World(folder, coordinator) as world:
        endpoint = "localhost:0"
        if case.nodes > 1:
            port = world.ports.reserve()
            endpoint = f"localhost:{port}" if which == api.TORCH else coordinator
        variables = {
            api.VARIABLE: which,
            "CASE_ENDPOINT": endpoint,
            "PYTHONPATH": str(PROGRAM.parents[2]),
        }
        program = [sys.executable, str(PROGRAM / "run.py"), case.name, str(folder)]
        commands = [
            world.start(f"node {node}", [*program, str(node)], variables)
            for node in range(case.nodes)
        ]
        codes = [command.wait(RUN_LIMIT_S) for command in commands]
        printed = "\n".join(command.stderr() for command in commands)
        print(printed)  # shown when the test fails
    assert codes == [0] * case.nodes, printed
    found = [(folder / f"result-{node}.json").read_text() for node in range(case.nodes)]
    return [json.loads(text) for text in sorted(found)]
