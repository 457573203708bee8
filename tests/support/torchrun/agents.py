"""Jobs under torch's own agents, with our rendezvous handler or with another one."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes.commands import Command
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, World

PROGRAM = str(Path(__file__).with_name("torch_agents.py"))
START_S = 180.0
"""Limit for a start: a dozen processes import torch or gRPC on a busy machine."""


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent of torch."""

    name: str
    workers: int = 1
    role: str = "default"
    run_id: str = ""


class TorchJob:
    """A job, or several, under agents of torch's LocalElasticAgent."""

    def __init__(
        self,
        world: World,
        *,
        nodes: tuple[int, int],
        max_restarts: int = 0,
        backend: str = "rallypoint",
        endpoint: str = "",
        script: Sequence[str] = (OBEDIENT,),
        env: Mapping[str, str] | None = None,
        config: Mapping[str, int] | None = None,
    ) -> None:
        """Describe the job.

        Args:
            nodes: fewest and most nodes of a round.
            env: more variables of agents and workers.
            config: keys and values of --rdzv-conf.
        """
        self.world = world
        self._commands: dict[str, Command] = {}
        self._env = env
        self._fields = {
            "backend": backend,
            "endpoint": endpoint or world.target,
            "run_id": world.job_id,
            "nodes": nodes,
            "max_restarts": max_restarts,
            "script": list(script),
            "config": dict(config or {}),
        }

    def start(self, *agents: Agent) -> None:
        """Start agents; they are forks of one process."""
        described = [
            {
                "name": agent.name,
                "workers": agent.workers,
                "role": agent.role,
                **({"run_id": agent.run_id} if agent.run_id else {}),
            }
            for agent in agents
        ]
        fields = json.dumps({**self._fields, "agents": described})
        names = " ".join(agent.name for agent in agents)
        command = self.world.start(
            f"torch's agents {names}", [sys.executable, PROGRAM, fields], self._env
        )
        self._commands.update({agent.name: command for agent in agents})

    def round(self, size: int, old: Collection[Worker] = (), **where: str) -> list[Worker]:
        """Wait for a round of so many workers; return them by rank.

        Args:
            size: workers of the whole round.
            old: workers of earlier rounds.
            where: values of variables that all the workers have.
        """
        seen = {worker.pid for worker in old}
        while True:
            started = self.world.mailbox.started()
            rounds: dict[tuple[str, str], list[Worker]] = {}
            for worker in started:
                env = worker.env
                is_there = all(env[name] == value for name, value in where.items())
                if is_there and worker.pid not in seen and env["WORLD_SIZE"] == str(size):
                    rounds.setdefault((env["MASTER_ADDR"], env["MASTER_PORT"]), []).append(worker)
            for workers in rounds.values():
                if sorted(worker.rank for worker in workers) == list(range(size)):
                    return sorted(workers, key=lambda worker: worker.rank)
            self.world.mailbox.wait("started", len(started) + 1, limit_s=START_S)

    def end(self, name: str) -> dict[str, Any]:
        """Wait for an agent's end; return what it had to say."""
        found = self._line(name, "result", "error", "exit")
        return {key: value for key, value in found.items() if key != "name"}

    def _line(self, name: str, *keys: str) -> dict[str, Any]:
        def is_wanted(line: str) -> bool:
            fields = _read(line)
            return fields.get("name") == name and any(key in fields for key in keys)

        return _read(self._commands[name].wait_stdout_line(is_wanted, START_S))


def _read(line: str) -> dict[str, Any]:
    """Return the fields of a line, none if a worker has written it."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
