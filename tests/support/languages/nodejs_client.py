"""The agent and the operator's script in Node.js, beside Python agents of a test's world."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.processes.commands import Command
from support.processes.world import OBEDIENT, World

PROMPT_SPEC = {
    "lastCall": "0s",
    "settleTime": "0s",
    "growAfter": "0s",
    "restartBackoff": "0s",
    "lease": "15s",
}
"""What `World.agent` gives to Python agents."""


class Client:
    """The example, installed in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def join(
        self,
        world: World,
        name: str,
        *flags: str,
        nnodes: str = "2",
        nproc: int = 1,
        command: Sequence[str] = (sys.executable, OBEDIENT),
        spec: Mapping[str, object] | None = None,
    ) -> Command:
        """Start the agent in Node.js as a node of the test's job; `spec` has its JSON names."""
        least, _, most = nnodes.partition(":")
        counts = {"minNodes": int(least), "maxNodes": int(most or least)}
        argv = [
            "node",
            str(self.folder / "agent.js"),
            f"--coordinator={world.target}",
            f"--job-id={world.job_id}",
            f"--node-name={name}",
            "--local-addr=127.0.0.1",
            f"--workers={nproc}",
            f"--spec={json.dumps({**PROMPT_SPEC, **counts, **(spec or {})})}",
            "--allow-different-programs",
            *flags,
            "--",
            *command,
        ]
        return world.start(f"agent {name}", argv)

    def operate(self, world: World, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the operator's script."""
        return world.run(*self._operator(world), *words)

    def start(self, world: World, *words: str) -> Command:
        """Start a command of the operator's script that runs for a while."""
        return world.start(f"operator {words[0]}", [*self._operator(world), *words])

    def _operator(self, world: World) -> list[str]:
        return ["node", str(self.folder / "operator.js"), f"--coordinator={world.target}"]
