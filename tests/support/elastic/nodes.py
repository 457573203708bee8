"""Nodes of a test's job that a Python program launches, each in a process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.processes.commands import Command
from support.processes.feed import LIMIT_S
from support.processes.world import OBEDIENT, World

PROGRAM = str(Path(__file__).parents[2] / "e2e" / "elastic" / "launching" / "node.py")
OWN_PROGRAM = str(Path(PROGRAM).with_name("own_workers.py"))
PROMPT = {"last_call": 0, "settle_time": 0, "grow_after": 0, "restart_backoff": 0, "lease": 15}
"""Policies that make a job wait, turned off."""


def launch(
    world: World,
    entry: str = sys.executable,
    *args: Any,
    name: str = "a",
    nodes: tuple[int, int] = (1, 1),
    nproc: int = 1,
    conf: dict[str, Any] | None = None,
    is_alone: bool = False,
    **config: Any,
) -> Command:
    """Start a program that launches the workers of one node.

    Args:
        world: of the test.
        entry: name of a function of the program, or a command; default: the obedient worker.
        args: its arguments.
        name: of the node.
        nodes: least and most nodes of the job.
        nproc: workers.
        conf: more of `rdzv_configs`.
        is_alone: with a built-in coordinator.
        config: more fields of LaunchConfig.
    """
    if entry == sys.executable and not args:
        args = (OBEDIENT,)
    configured = {
        "min_nodes": nodes[0],
        "max_nodes": nodes[1],
        "nproc_per_node": nproc,
        "run_id": world.job_id,
        "rdzv_backend": "rallypoint",
        "rdzv_endpoint": "" if is_alone else world.target,
        "rdzv_configs": {**PROMPT, "node_name": name, **(conf or {})},
        "local_addr": "127.0.0.1",
        "max_restarts": 0,
        **config,
    }
    options = json.dumps({"config": configured, "entry": entry, "args": args})
    return world.start(f"node {name}", [sys.executable, PROGRAM, options], {"OBEDIENT": OBEDIENT})


def launch_own(
    world: World, name: str, nodes: tuple[int, int], restarts: int = 0, **more: Any
) -> Command:
    """Start a program with an agent that runs its worker itself: the obedient one."""
    options = {
        "backend": "rallypoint",
        "endpoint": world.target,
        "run_id": world.job_id,
        "min_nodes": nodes[0],
        "max_nodes": nodes[1],
        "local_addr": "127.0.0.1",
        "command": [sys.executable, OBEDIENT],
        "restarts": restarts,
        "node_name": name,
        **PROMPT,
        **more,
    }
    return world.start(f"node {name}", [sys.executable, OWN_PROGRAM, json.dumps(options)])


def result(command: Command, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Wait for the end of such a program; return what it has printed."""
    code = command.wait(limit_s)
    lines = [line for line in command.stdout().splitlines() if line.startswith("{")]
    assert lines, command.stderr()
    found: dict[str, Any] = json.loads(lines[-1])
    assert (code == 0) is ("values" in found)
    return found
