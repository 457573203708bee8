"""Signals to workers whose files are still prepared."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.output.destinations import Destinations, OutputSpec
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.supervisor import Supervisor
from rallypoint.agent.torchelastic.logs_plugin import PluginAnswer
from rallypoint.base.console import Console, Consoles
from support.core.orders import run_order

USR1, USR2, TERM = 10, 12, 15
ORDER = run_order(local_world_size=1)


class Host:
    """Stands in for the helper process: keeps what it is asked for."""

    pid = 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    def spawn(self, request: SpawnRequest) -> None:
        self.asked.append("spawn")

    def signal(self, signum: int, *, alone: bool = False) -> None:
        self.asked.append(f"signal {signum}{' alone' if alone else ''}")


class Plugin:
    """Answers when the test wants it to."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.was_asked = asyncio.Event()

    async def ask(self, _: object) -> PluginAnswer:
        self.was_asked.set()
        await self.may_answer.wait()
        nowhere = {0: os.devnull}
        return PluginAnswer(Destinations(nowhere, nowhere, {}, {}, nowhere), {})


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_signal_waits_for_the_workers_to_be_requested(
    is_stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers get each once, after the request that starts them; after a stop there are none."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    host, plugin, posted = Host(), Plugin(), list[inputs.Input]()
    began, is_wanted = asyncio.Event(), True
    logs, nowhere = LogFolder(str(tmp_path), "job"), os.open(os.devnull, os.O_WRONLY)
    consoles = Consoles(Console(nowhere), Console(nowhere))
    async with asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(
            host=cast(Any, host),
            launch=Launch("train.py", ()),
            job_id="job",
            environment={},
            variables=tuple,
            post=posted.append,
            tasks=tasks,
            outputs=WorkerOutputs(OutputSpec(), consoles, logs, node_name=str),
            plugin=cast(Any, plugin),
            is_wanted=lambda number: is_wanted,
            began=lambda order: began.set(),
        )
        supervisor.start(ORDER)
        await plugin.was_asked.wait()
        supervisor.signal(USR1)
        supervisor.forward(USR2)
        supervisor.signal(USR1)
        assert host.asked == []
        if is_stopped:
            is_wanted = False
            supervisor.signal(TERM)
            assert [type(one) for one in posted] == [inputs.WorkerNotStarted]
        else:
            plugin.may_answer.set()
            await began.wait()
            supervisor.signal(TERM)

    first = [] if is_stopped else ["spawn", f"signal {USR1}", f"signal {USR2} alone"]
    assert host.asked == [*first, f"signal {TERM}"]
    os.close(nowhere)
