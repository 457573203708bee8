"""Jobs on hosts that know each other's names from a file: whatever it says, they meet."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.access.authority import Authority
from support.hosted.pair import PROMPT, Pair
from support.machines.netns import Network, NotPermitted
from support.processes.commands import COORDINATOR, NODE_AGENT, RALLYPOINT, Command
from support.processes.world import World

HEAD = "node1.example.com"
PORT = 29400
WORKER = """
import os
from rallypoint import worker
worker.barrier("all")
print("met at", os.environ["MASTER_ADDR"])
"""
FLAGS = ("--nnodes=2", "--join-timeout=30", "--rdzv-id=silent")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    try:
        network = Network("node1", "node2")
    except NotPermitted as why:
        pytest.skip(str(why))
    with (
        network,
        tempfile.TemporaryDirectory() as folder,
        World(tmp_path, "localhost:1", f"{folder}/mailbox") as world,
        Pair(network, world) as pair,
    ):
        (world.folder / "train.py").write_text(WORKER)
        yield pair


@pytest.fixture(params=["plain", "tls"])
def protection(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """What all processes have in their environment; the certificate has the name of the host."""
    if request.param == "plain":
        return {}
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("head", [HEAD])
    return {
        "RALLYPOINT_TLS_CA": authority.ca,
        "RALLYPOINT_TLS_CERT": issued.cert,
        "RALLYPOINT_TLS_KEY": issued.key,
    }


def finish(agents: list[Command]) -> None:
    """Every worker has met the others, and no agent has doubted what it connects to."""
    assert [agent.wait() for agent in agents] == [0, 0]
    for agent in agents:
        assert "met at" in agent.stdout()
        assert "another program" not in agent.stderr()


@pytest.mark.long
def test_hosted_coordinator_is_found(pair: Pair, protection: dict[str, str]) -> None:
    """The node whose file has the name hosts it; nothing waits for a name server."""
    pair.silence_names()
    words = (NODE_AGENT, f"--rdzv-endpoint={HEAD}:{PORT}", *FLAGS, "train.py")
    agents = [pair.start(rank, words, {**PROMPT, **protection}) for rank in (0, 1)]

    assert agents[0].wait_event("coordinator_started")["address"] == f"{HEAD}:{PORT}"
    finish(agents)


@pytest.mark.long
def test_coordinator_of_its_own_is_found(pair: Pair, protection: dict[str, str]) -> None:
    """By agents, workers, a relay and a command, although the name server is silent."""
    pair.silence_names()
    flags = [f"--port={PORT}", "--state=memory"]
    if protection:
        flags += [f"--tls-cert={protection['RALLYPOINT_TLS_CERT']}"]
        flags += [f"--tls-key={protection['RALLYPOINT_TLS_KEY']}"]
    coordinator = pair.start(0, (COORDINATOR, *flags), {})
    coordinator.wait_event("coordinator_started")
    words = (RALLYPOINT, "relay", f"--coordinator={HEAD}:{PORT}", "--port=0")
    trust = (f"--tls-ca={protection['RALLYPOINT_TLS_CA']}",) if protection else ()
    relay = pair.start(1, (*words, *trust), {})
    relay.wait_event("coordinator_reached")
    command = (NODE_AGENT, f"--coordinator={HEAD}:{PORT}", *FLAGS, "train.py")
    finish([pair.start(rank, command, {**PROMPT, **protection}) for rank in (0, 1)])
    target = ("-c", f"{HEAD}:{PORT}")
    asked = pair.start(1, (RALLYPOINT, "status", "silent", *target), protection)
    doctor = pair.start(1, (RALLYPOINT, "doctor", *target), protection)

    assert asked.wait() == 0
    doctor.wait()
    address = re.escape(pair.network.hosts["node1"].address)
    assert re.search(rf"ok +name +{HEAD} is {address}, found in \d+ ms", doctor.stdout())


@pytest.mark.long
def test_host_that_calls_itself_loopback_has_an_address(pair: Pair) -> None:
    """Debian has 127.0.1.1 for the host's own name. No host here has a default route."""
    pair.write_hosts(0, "127.0.1.1")
    words = (NODE_AGENT, f"--rdzv-endpoint={HEAD}:{PORT}", *FLAGS, "train.py")
    agents = [pair.start(rank, words, PROMPT) for rank in (0, 1)]
    finish(agents)

    own = {f"met at {host.address}" for host in pair.network.hosts.values()}
    assert {line for agent in agents for line in own if line in agent.stdout()} < own
