"""TorchX's `dist.ddp`, with node-agent in torchrun's place and nothing else changed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.processes.commands import SCRIPTS, Command
from support.processes.world import OBEDIENT, World

LIMIT_S = 120

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("torchx") is None, reason="torchx: make nightly installs it"),
]


@pytest.fixture
def torchx_world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, "localhost:1") as world:
        yield world


def start_app(world: World) -> Command:
    """Start the app, without even the variables that the tests set for Rallypoint."""
    words = ["env", "-u", "RALLYPOINT_LOG_FORMAT", str(SCRIPTS / "torchx"), "run"]
    words += ["--scheduler", "local_cwd", "dist.ddp", "-j", "2x2", "--script", OBEDIENT]
    words += ["--rdzv_port", str(world.ports.reserve())]
    return world.start("torchx", words, world.with_torchrun_link())


def test_dist_ddp(torchx_world: World) -> None:
    """Two replicas with two workers each are one job of four; they end with it, and so does the
    coordinator that replica 0 has started.
    """
    app = start_app(torchx_world)

    workers = torchx_world.mailbox.workers(4, limit_s=LIMIT_S)

    assert [worker.rank for worker in workers] == [0, 1, 2, 3]
    assert [worker.env["GROUP_RANK"] for worker in workers] == ["0", "0", "1", "1"]
    assert {worker.env["WORLD_SIZE"] for worker in workers} == {"4"}
    assert len({(one.env["MASTER_ADDR"], one.env["MASTER_PORT"]) for one in workers}) == 1
    for worker in workers:
        worker.tell("exit", "0")
    assert app.wait(LIMIT_S) == 0, app.stderr()
    assert "Job finished: SUCCEEDED" in app.stderr()
    assert torchx_world.left(limit_s=LIMIT_S) == []


def test_dist_ddp_of_a_worker_that_fails(torchx_world: World) -> None:
    """The app fails, and no process is left."""
    app = start_app(torchx_world)
    workers = torchx_world.mailbox.workers(4, limit_s=LIMIT_S)

    workers[2].tell("exit", "3")

    assert app.wait(LIMIT_S) != 0
    assert "FAILED" in app.stderr()
    assert torchx_world.left(limit_s=LIMIT_S) == []
