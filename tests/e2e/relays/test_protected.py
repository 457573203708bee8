"""Agents behind a relay, at a coordinator that asks for certificates and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.client import Client
from support.access.guarded import Guarded, guarded
from support.access.protected import HOST
from support.processes.world import WORKERS
from support.relays.running import start_relay

GUARDED = str(WORKERS / "guarded.py")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Guarded]:
    """A protected coordinator, and a relay in front of it, which the world's agents use."""
    with guarded(tmp_path) as made:
        pair = made.authority.issue("relay", [HOST])
        flags = (
            *(f"--tls-ca={tmp_path / 'servers.pem'}", f"--token-file={tmp_path / 'relay.token'}"),
            *(f"--tls-cert={pair.cert}", f"--tls-key={pair.key}"),
            f"--tls-client-ca={tmp_path / 'clients.pem'}",
        )
        _, made.world.target = start_relay(made.world, made.world.target, 0, *flags)
        yield made


def test_job_runs_with_certificates_and_tokens(site: Guarded) -> None:
    """Its workers share keys and barriers; each agent has an audit line with its own address."""
    agents = [
        site.world.agent(name, *site.flags(), nnodes="2", script=(GUARDED, str(site.folder / name)))
        for name in ("x", "y")
    ]
    codes = [agent.wait() for agent in agents]
    with Client(site.world.target, access=site.access()) as client:
        jobs = [job.job_id for job in client.list_jobs()]
    assert site.command is not None
    joined = [line for line in site.command.events("audit") if line["outcome"] == "allowed"]

    assert codes == [0, 0], agents[0].stderr()
    assert jobs == [site.world.job_id]
    assert [("Relay", "rack")] + [("Session", "trainer")] * 2 == [
        (line["method"], line["caller"]) for line in joined
    ]
    relay, *named = [line["peer"] for line in joined]
    assert {relay} == {peer.partition(" via ")[2] for peer in named}
    assert 2 == len(set(named))
