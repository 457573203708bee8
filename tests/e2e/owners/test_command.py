"""`coordinator --state etcd://…`: what it needs, and every way in which it cannot start."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.etcd.cluster import Cluster
from support.etcd.coordinators import Coordinators
from support.processes.commands import COORDINATOR
from support.processes.feed import LIMIT_S
from support.processes.world import World

NOWHERE = "etcd://127.0.0.1:1/p"
"""An address of etcd at which nothing listens."""


def refused(world: World, code: int, *flags: str) -> str:
    """Run a coordinator that cannot start; return its one line for a person."""
    ended = world.run(COORDINATOR, *flags)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert (code, 1) == (ended.returncode, len(lines)), ended
    return lines[0].removeprefix("coordinator: error: ")


def test_file_that_cannot_be_read(world: World, tmp_path: Path) -> None:
    """The files of TLS and of the password are read at the start."""
    flags = (f"--state={NOWHERE}?ca={tmp_path}/none", "--advertise=h", "--port=0")

    assert f"cannot read {tmp_path}/none" in refused(world, 1, *flags)


def test_end_before_etcd_was_reached(world: World) -> None:
    """SIGTERM ends it at once: there is nothing to hand over."""
    argv = [COORDINATOR, "--host=127.0.0.1", "--port=0", f"--state={NOWHERE}"]
    coordinator = world.start("coordinator", argv)
    coordinator.wait_event("decisions_stopped", why="127.0.0.1:1 cannot be reached")
    coordinator.signal(signal.SIGTERM)

    assert 0 == coordinator.wait(LIMIT_S / 10)


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        (("--host=::1",), "[::1]:{port}"),
        (("--host=127.0.0.1", "--advertise=localhost"), "localhost:{port}"),
        (("--host=127.0.0.1", "--advertise=localhost:7"), "localhost:7"),
    ],
)
def test_where_others_reach_it(
    world: World, on_one: Coordinators, etcd: Cluster, flags: tuple[str, ...], address: str
) -> None:
    """The address that it gives to the others, as etcd keeps it."""
    argv = [COORDINATOR, "--port=0", f"--state={on_one.place}", *flags]
    coordinator = world.start("coordinator", argv)
    port = coordinator.stdout_line().rpartition(":")[2]
    coordinator.wait_event("shard_claimed")
    prefix = "/" + on_one.place.rpartition("/")[2]
    found = etcd.control("get", "--prefix", f"{prefix}/live/members/", "--print-value-only")

    assert f'"{address.format(port=port)}"' in found
