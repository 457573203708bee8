"""A hosted coordinator with TLS: what the agents are given protects it, and admits its nodes."""

from __future__ import annotations

import shlex
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.last_runs import FOLDER
from support.access.authority import Authority, Pair
from support.processes.commands import NODE_AGENT, Command
from support.processes.world import OBEDIENT, PROMPT, World

HOST = "127.0.0.1"
TOKEN = "secret-of-the-job-0123456789"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world without a coordinator, at a port that is free."""
    with World(tmp_path, "localhost:1") as world:
        port = world.ports.reserve()
        world.ports.close()
        world.target = f"{HOST}:{port}"
        yield world


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "a")


def files(authority: Authority, pair: Pair) -> tuple[str, ...]:
    return (f"--tls-ca={authority.ca}", f"--tls-cert={pair.cert}", f"--tls-key={pair.key}")


def start(world: World, name: str, *flags: str, **variables: str) -> Command:
    argv = [NODE_AGENT, f"--rdzv-endpoint={world.target}", f"--node-name={name}", *PROMPT]
    return world.start(f"agent {name}", [*argv, "--nnodes=2", *flags, OBEDIENT], variables)


def finish(world: World, agents: list[Command]) -> None:
    """Let the job succeed; nothing of it or its coordinator is left."""
    for worker in world.mailbox.workers(2):
        worker.tell("exit", "0")

    assert [agent.wait() for agent in agents] == [0, 0]
    assert world.left() == []
    assert {path.name for path in (world.folder / "state" / "rallypoint").iterdir()} <= {FOLDER}


def shown(world: World) -> str:
    """Return the certificate that a new connection is shown."""
    return ssl.get_server_certificate((HOST, int(world.target.rpartition(":")[2])))


def test_nodes_of_the_authority_meet_encrypted(world: World, authority: Authority) -> None:
    """The coordinator has the host's certificate; a node without one, or of another, stays out."""
    head, node = authority.issue("head", [HOST]), authority.issue("node")
    foreign = Authority(world.folder / "b", "another authority").issue("node")
    agents = [start(world, "a", *files(authority, head))]
    agents[0].wait_event("coordinator_started")
    host = "--rdzv-conf=is_host=0"
    strays = {
        start(world, "c", host): "it uses TLS: give --tls-ca FILE",
        start(world, "d", host, f"--tls-ca={authority.ca}"): "wants a certificate of this client",
        start(world, "e", host, *files(authority, foreign)): "refuses this client's certificate",
    }
    for stray, why in strays.items():
        stray.wait_event("coordinator_not_reached", why=why)
        stray.kill()
    agents.append(start(world, "b", *files(authority, node)))
    world.mailbox.workers(2)

    assert shown(world) == Path(head.cert).read_text()
    finish(world, agents)


@pytest.mark.long
def test_token_counts_too_and_no_one_can_read_it(world: World, authority: Authority) -> None:
    """With both, a certificate alone is not enough; the command line has paths only."""
    head, node = authority.issue("head", [HOST]), authority.issue("node")
    variables = {
        "RALLYPOINT_TLS_CA": authority.ca,
        "RALLYPOINT_TLS_CERT": head.cert,
        "RALLYPOINT_TLS_KEY": head.key,
        "RALLYPOINT_TOKEN": TOKEN,
    }
    agents = [start(world, "a", **variables)]
    pid = agents[0].wait_event("coordinator_started")["pid"]
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    stray = start(world, "c", "--rdzv-conf=is_host=0", *files(authority, node))

    assert stray.wait() == 77
    assert "has no role here" in stray.said()[-1]
    agents.append(start(world, "b", *files(authority, node), RALLYPOINT_TOKEN=TOKEN))
    assert f"--tls-key={head.key}" in words
    assert not any(TOKEN in word or "PRIVATE" in word for word in words)
    finish(world, agents)
    assert not any(TOKEN in agent.stderr() for agent in agents)


@pytest.mark.long
def test_renewed_certificate_is_shown_to_new_connections(
    world: World, authority: Authority
) -> None:
    """Without a restart of anything, and the other node joins with a renewed one, too."""
    head, node = authority.issue("head", [HOST]), authority.issue("node")
    agents = [start(world, "a", *files(authority, head), "--log-level=debug")]
    kept = agents[0].wait_event("coordinator_log_kept")
    agents[0].wait_event("coordinator_reached")
    tail = f"exec tail -n +1 -F {shlex.quote(kept['path'])} >&2"
    log = world.start("log", ["sh", "-c", tail])
    head.replace_with(authority.issue("head", [HOST]))
    log.wait_event("certificate_renewed")
    log.kill()

    assert shown(world) == Path(head.cert).read_text()
    node.replace_with(authority.issue("node"))
    agents.append(start(world, "b", *files(authority, node)))
    finish(world, agents)
