"""Machines as sites set them up: workers reach rank 0, without a flag, in the first round."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hosted.pair import PROMPT
from support.machines.netns import NotPermitted
from support.machines.sites import Lan, Machines, Site
from support.processes.commands import NODE_AGENT, Command
from support.processes.world import World

NODES = 3
OFFICE = Lan("198.18.0.", is_parted=True)
FABRIC = Lan("198.18.1.")
FABRIC_6 = Lan("fd00:18::")
HEAD = FABRIC.address(1)
SITES = {
    "Debian": Site((FABRIC,), "127.0.1.1", HEAD, gateway=FABRIC.address(250)),
    "Debian without a default route": Site((FABRIC,), "127.0.1.1", HEAD),
    "own name on another network": Site(
        (OFFICE, FABRIC), OFFICE.address(1), HEAD, gateway=OFFICE.address(250)
    ),
    "Debian with two networks": Site(
        (OFFICE, FABRIC), "127.0.1.1", HEAD, gateway=OFFICE.address(250)
    ),
    "two networks without a default route": Site((OFFICE, FABRIC), "127.0.1.1", HEAD),
    "no default route": Site((FABRIC,), HEAD, HEAD),
    "IPv6 only": Site((FABRIC_6,), FABRIC_6.address(1), FABRIC_6.address(1)),
}
WITH_TORCH = """
import os
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
total = torch.ones(1)
dist.all_reduce(total)
print("met at", os.environ["MASTER_ADDR"], "total", int(total), flush=True)
dist.destroy_process_group()
"""
WORKER = """
import os
import socket

host, port, size = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
if os.environ["RANK"] == "0":
    # As the store of torch does: on all addresses, IPv6 ones and IPv4 ones.
    at, family = ("::", int(port)), socket.AF_INET6
    with socket.create_server(at, family=family, dualstack_ipv6=True) as store:
        guests = [store.accept()[0] for _ in range(int(size) - 1)]
    for guest in guests:
        guest.sendall(size.encode())
        guest.close()
    total = size
else:
    while True:
        try:
            with socket.create_connection((host, port), timeout=60) as guest:
                total = guest.recv(9).decode()
            break
        except ConnectionRefusedError:
            pass  # rank 0 is not there yet
print("met at", host, "total", total, flush=True)
"""
"""Meets the others as torch's store does, which takes seconds to import."""

pytestmark = pytest.mark.long


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest) -> Site:
    return SITES[request.param]


@pytest.fixture(
    params=[
        pytest.param(WORKER, id="sockets"),
        pytest.param(WITH_TORCH, id="torch", marks=pytest.mark.nightly),
    ]
)
def script(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def agents(site: Site, script: str, tmp_path: Path) -> Iterator[list[Command]]:
    """Torchrun's command line on three machines; gloo uses the fast network."""
    try:
        machines = Machines(site, NODES)
    except NotPermitted as why:
        pytest.skip(str(why))
    (tmp_path / "train.py").write_text(script)
    variables = {**PROMPT, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"eth{len(site.lans) - 1}"}
    words = (NODE_AGENT, f"--nnodes={NODES}", "--rdzv-endpoint=node1:29400", "train.py")
    with (
        machines,
        tempfile.TemporaryDirectory() as folder,
        World(tmp_path, "localhost:1", f"{folder}/mailbox") as world,
    ):
        yield [
            world.start(f"agent node{number}", [*machines.prefix(number), *words], variables)
            for number in range(1, NODES + 1)
        ]


def test_workers_meet_in_the_first_round(site: Site, agents: list[Command]) -> None:
    """At the address at which the other machines have reached the coordinator on node1."""
    codes = [agent.wait(120) for agent in agents]

    assert codes == [0] * NODES, "\n".join(agent.stderr() for agent in agents)
    expected = f"met at {site.name} total {NODES}"
    assert [expected] * NODES == [agent.stdout().strip() for agent in agents]
    replaced = [event["found"] for event in agents[0].events("master_addr_replaced")]
    assert replaced == [lan.address(1) for lan in site.lans[:-1]]
    rounds = [event["round"] for agent in agents for event in agent.events("round_began")]
    assert [1] * NODES == rounds
