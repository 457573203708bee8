"""Files that cannot be made: the machine's fault costs no restart, a mistake is named at once."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any, cast

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.supervisor import Supervisor
from rallypoint.base.console import Console, Consoles
from support.core.orders import run_order


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, [inputs.WorkersNotPrepared]),
        (errno.EMFILE, [inputs.WorkersNotPrepared]),
        (errno.EACCES, [inputs.WorkerNotStarted] * 2),
    ],
)
@pytest.mark.parametrize("method", ["begin", "open"])
async def test_only_mistakes_count_as_failed_starts(
    code: int,
    expected: list[type[inputs.Input]],
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the machine lacks something, the node leaves the round; no worker is started."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    posted, done = list[inputs.Input](), asyncio.Event()

    def post(input: inputs.Input) -> None:
        posted.append(input)
        if len(posted) == len(expected):
            done.set()

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    nowhere = os.open(os.devnull, os.O_WRONLY)
    consoles = Consoles(Console(nowhere), Console(nowhere))
    monkeypatch.setattr(WorkerOutputs, method, fail)
    outputs = WorkerOutputs(OutputSpec(), consoles, LogFolder(str(tmp_path), "job"), node_name=str)
    async with asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(
            host=cast(Any, None),
            launch=Launch("train.py", ()),
            job_id="job",
            environment={},
            variables=tuple,
            post=post,
            tasks=tasks,
            outputs=outputs,
        )
        supervisor.start(run_order(local_world_size=2))
        async with asyncio.timeout(30):
            await done.wait()

    assert [type(one) for one in posted] == expected
    assert os.strerror(code) in cast(Any, posted[0]).text
