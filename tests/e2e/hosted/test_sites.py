"""Machines as sites set them up: workers reach rank 0, without a flag, in the first round."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from support.hosted.pair import PROMPT
from support.machines.netns import NotPermitted
from support.processes.commands import NODE_AGENT, Command
from support.processes.world import World


@dataclass(frozen=True, slots=True)
class Lan:
    """A network that each machine has an interface to."""

    prefix: str
    """All but the number of the machine, such as "198.18.1." or "fd00:1::"."""
    is_parted: bool = False
    """Machines do not reach each other on it, only what is behind it."""

    def address(self, number: int) -> str:
        """Return the address of a machine, from 1."""
        return f"{self.prefix}{number}"


@dataclass(frozen=True, slots=True)
class Site:
    """How machines are cabled, and what they call the first one, node1."""

    lans: tuple[Lan, ...]
    """eth0, eth1, …"""
    own_name: str
    """Address that node1 has for its own name."""
    name: str
    """Address that the others have for it."""
    gateway: str = ""
    """Of the default route; empty: there is none."""


class Machines:
    """Machines called node1, node2, …"""

    def __init__(self, site: Site, count: int) -> None:
        """Build them.

        Raises:
            NotPermitted: when this machine does not allow it.
        """
        if shutil.which("ip") is None:
            raise NotPermitted("there is no `ip` command (package iproute2)")
        token = secrets.token_hex(3)
        self._site = site
        self._switches = f"rp{token}-switches"
        self._machines = [f"rp{token}-node{number}" for number in range(1, count + 1)]
        self._folders = [Path("/etc/netns", machine) for machine in self._machines]
        try:
            self._build()
        except (OSError, subprocess.CalledProcessError) as error:
            self._remove()
            why = getattr(error, "stderr", "") or str(error)
            raise NotPermitted(f"no such machines here: {why.strip()}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def prefix(self, number: int) -> list[str]:
        """Return the words before a command line that run it on a machine, from 1."""
        named = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"node{number}")
        return ["ip", "netns", "exec", self._machines[number - 1], *named]

    def _build(self) -> None:
        _ip("netns", "add", self._switches)
        for index in range(len(self._site.lans)):
            _ip("-n", self._switches, "link", "add", f"lan{index}", "type", "bridge")
            _ip("-n", self._switches, "link", "set", f"lan{index}", "up")
        for number, machine in enumerate(self._machines, 1):
            _ip("netns", "add", machine)
            _ip("-n", machine, "link", "set", "lo", "up")
            for index, lan in enumerate(self._site.lans):
                self._cable(machine, number, index, lan)
            if self._site.gateway:
                _ip("-n", machine, "route", "add", "default", "via", self._site.gateway)
            self._name(number)

    def _cable(self, machine: str, number: int, index: int, lan: Lan) -> None:
        port, device = f"port{index}-{number}", f"eth{index}"
        ends = ("type", "veth", "peer", "name", device, "netns", machine)
        _ip("-n", self._switches, "link", "add", port, *ends)
        _ip("-n", self._switches, "link", "set", port, "master", f"lan{index}", "up")
        isolated = ("type", "bridge_slave", "isolated", "on" if lan.is_parted else "off")
        _ip("-n", self._switches, "link", "set", port, *isolated)
        is_ipv6 = ":" in lan.prefix
        address = f"{lan.address(number)}/{64 if is_ipv6 else 24}"
        _ip("-n", machine, "address", "add", address, "dev", device, *("nodad",) * is_ipv6)
        _ip("-n", machine, "link", "set", device, "up")

    def _name(self, number: int) -> None:
        folder = self._folders[number - 1]
        folder.mkdir(parents=True)
        leads_to = self._site.own_name if number == 1 else self._site.name
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{leads_to} node1"]
        if number > 1:
            lines.append(f"{self._site.lans[-1].address(number)} node{number}")
        (folder / "hosts").write_text("".join(f"{line}\n" for line in lines))
        (folder / "resolv.conf").write_text("")

    def _remove(self) -> None:
        for namespace in (*self._machines, self._switches):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(words: Sequence[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


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
