"""Runs functions as workers of a helper, without an agent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rallypoint.agent.helper.events import Exited, Spawned, SpawnRequest
from rallypoint.agent.round.environ import worker_command
from rallypoint.elastic.functions import FunctionLaunch
from support.processes.processes import Conversation

METHODS = ("spawn", "forkserver", "fork")
_ROUND = 1


class Ended:
    """How the workers of a function ended, by local rank."""

    def __init__(self) -> None:
        self.exits: dict[int, int] = {}
        """Exit code, or minus the signal."""
        self.errors: dict[int, Any] = {}
        """What each has recorded."""
        self.values: dict[int, Any] = {}

    @property
    def exit(self) -> int:
        (exit,) = self.exits.values()
        return exit

    @property
    def error(self) -> dict[str, Any]:
        (error,) = self.errors.values()
        found: dict[str, Any] = error["message"]
        return found

    @property
    def value(self) -> Any:
        (value,) = self.values.values()
        return value


async def run_function(
    folder: Path,
    entrypoint: Callable[..., Any],
    *args: Any,
    method: str = "spawn",
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
    fds: tuple[int, int, int] = (0, 1, 2),
    cpus: tuple[int, ...] = (),
) -> Ended:
    """Run a function in some workers; return how they ended."""
    launch = FunctionLaunch(entrypoint, args, method)
    talk = Conversation(launch.host())
    try:
        for rank in range(workers):
            talk.host.spawn(_request(launch, rank, folder, environment, fds, cpus))
        ended = Ended()
        while len(ended.exits) < workers:
            match await talk.next():
                case Exited(worker_id=rank, exit_code=code, signal=signum):
                    ended.exits[rank] = -signum if signum else code or 0
                case event:
                    assert isinstance(event, Spawned), event
        for rank in range(workers):
            file = folder / f"error{rank}.json"
            if file.exists():
                ended.errors[rank] = json.loads(file.read_text())
        succeeded = [rank for rank, code in ended.exits.items() if code == 0]
        ended.values = launch.results(_ROUND, succeeded)
        return ended
    finally:
        await talk.host.close()
        launch.close()


def _request(
    launch: FunctionLaunch,
    rank: int,
    folder: Path,
    environment: Mapping[str, str] | None,
    fds: tuple[int, int, int],
    cpus: tuple[int, ...],
) -> SpawnRequest:
    function = launch.launch.function
    assert function is not None
    return SpawnRequest(
        worker_id=rank,
        argv=worker_command(launch.launch, python="", round=_ROUND, local_rank=rank),
        env={
            **(os.environ if environment is None else environment),
            "RANK": str(rank),
            "TORCHELASTIC_ERROR_FILE": str(folder / f"error{rank}.json"),
        },
        cwd=str(folder),
        stdin_fd=fds[0],
        stdout_fd=fds[1],
        stderr_fd=fds[2],
        cpus=cpus,
        is_forked=function.is_forked,
    )
