"""Agents, workers and clients of a coordinator that asks for certificates and tokens."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from rallypoint.client import Client
from rallypoint.client.errors import HandshakeFailed, NotAllowed
from rallypoint.wire.access import Access
from rallypoint.wire.credentials import LOOK_S
from support.access.authority import Authority
from support.access.guarded import Guarded, guarded
from support.access.protected import AGENT, OPERATOR, OTHER_AGENT
from support.processes.feed import LIMIT_S
from support.processes.world import WORKERS

HOST = "127.0.0.1"
NEW_AGENT, NEW_OPERATOR = "new-agent-token-0123456789", "new-operator-token-0123456"
GUARDED = str(WORKERS / "guarded.py")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path) as made:
        yield made


def test_job_runs_with_certificates_and_tokens(site: Guarded) -> None:
    """Its workers share keys and barriers, and have no token but their own."""
    agents = [
        site.world.agent(
            name,
            *site.flags(),
            nnodes="2",
            script=(GUARDED, str(site.folder / name)),
            env={"RALLYPOINT_TOKEN": "not-for-workers-0123456789"},
        )
        for name in ("x", "y")
    ]
    codes = [agent.wait() for agent in agents]
    with Client(site.world.target, access=site.access()) as client:
        jobs = [job.job_id for job in client.list_jobs()]
    written = [(site.folder / name).read_text().split() for name in ("x", "y")]
    tokens = {name for words in written for name in words if "TOKEN" in name}

    assert codes == [0, 0], agents[0].stderr()
    assert jobs == [site.world.job_id]
    assert [words[0] for words in written] == ["2", "2"]
    assert tokens == {"RALLYPOINT_WORKER_TOKEN"}


@pytest.mark.long
def test_strangers_get_one_line(site: Guarded) -> None:
    """An agent exits with 77 if the coordinator does not know it, and says what is missing."""
    ca, cert, key, token = site.flags()
    foreign = Authority(site.folder / "foreign").issue("node")
    site.write_token("other", OTHER_AGENT)
    tries = {
        "no token": (ca, cert, key),
        "other job": (ca, cert, key, f"--token-file={site.folder / 'other.token'}"),
        "no file": (ca, cert, key, "--token-file=nowhere"),
    }
    agents = {name: site.world.agent(name, *flags) for name, flags in tries.items()}
    codes = {name: agent.wait() for name, agent in agents.items()}
    lines = {name: agent.said() for name, agent in agents.items()}

    assert codes == {"no token": 77, "other job": 77, "no file": 2}
    assert [len(said) for said in lines.values()] == [1, 1, 1]
    assert "set --token-file" in lines["no token"][0]
    assert "job" in lines["other job"][0]
    assert lines["no file"][0].endswith("cannot read nowhere: No such file or directory")

    away = {
        "no TLS": ((), "it uses TLS: give --tls-ca FILE"),
        "no certificate": ((ca, token), "it wants a certificate of this client"),
        "foreign": (
            (ca, f"--tls-cert={foreign.cert}", f"--tls-key={foreign.key}", token),
            "it refuses this client's certificate",
        ),
        "other name": ((ca, cert, key, token, "--tls-server-name=head"), "is not for head"),
    }
    for name, (flags, why) in away.items():
        agent = site.world.agent(name, "--coordinator-timeout=0.5", *flags)
        agent.wait_event("coordinator_not_reached", why=why)

        assert agent.wait() == 75


def test_clients_get_an_error_that_says_what_to_do(site: Guarded) -> None:
    """At once: waiting would not help."""
    access, began_s = site.access(), time.monotonic()
    foreign = Authority(site.folder / "foreign")
    tries = (
        (Access(), HandshakeFailed, "it uses TLS: give --tls-ca FILE"),
        (Access(ca_file=foreign.ca), HandshakeFailed, "of an unknown authority: check --tls-ca"),
        (Access(ca_file=access.ca_file), HandshakeFailed, "wants a certificate of this client"),
        (
            Access(ca_file=access.ca_file, cert_file=access.cert_file, key_file=access.key_file),
            NotAllowed,
            "set --token-file",
        ),
    )
    for one, kind, text in tries:
        with Client(site.world.target, access=one, limit_s=LIMIT_S) as client:
            with pytest.raises(kind, match=text):
                client.get_job("any")

    assert time.monotonic() - began_s < LIMIT_S / 2
    assert site.command is not None
    assert "Handshake failed" not in site.command.stderr()  # gRPC's own line, one for each


class Load:
    """A client that calls all the time, in a thread."""

    def __init__(self, site: Guarded) -> None:
        self._site = site
        self._ends = threading.Event()
        self._changed = threading.Condition()
        self._answered_s = 0.0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._call)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(LIMIT_S)

    def _call(self) -> None:
        try:
            with Client(self._site.world.target, access=self._site.access()) as client:
                while not self._ends.wait(0.005):
                    client.get_job(self._site.world.job_id)
                    self._note(None)
        except Exception as error:  # noqa: BLE001  # the test judges it
            self._note(error)

    def _note(self, error: Exception | None) -> None:
        with self._changed:
            self._answered_s, self.error = time.monotonic(), error
            self._changed.notify_all()

    def pass_looks(self) -> None:
        """Wait until calls have been answered for longer than between two looks at files."""
        until_s = time.monotonic() + 1.5 * LOOK_S
        with self._changed:
            passed = self._changed.wait_for(
                lambda: self.error is not None or self._answered_s > until_s, LIMIT_S
            )

        assert passed
        assert self.error is None


@pytest.mark.long
def test_everything_is_renewed_under_load(site: Guarded) -> None:
    """Authorities, certificates and tokens, while workers run and calls are made.

    In the order of the documentation: what is new is accepted, then used, then alone accepted. At
    the end nothing of what there was at the beginning is worth anything.
    """
    world, second = site.world, Authority(site.folder / "b", "another authority")
    outdated = Access(ca_file=site.authority.ca, token=OPERATOR)
    agent = world.agent("n", *site.flags())
    (worker,) = world.mailbox.workers(1)
    assert site.command is not None
    with Load(site) as load:
        site.trust("servers", site.authority, second)
        site.trust("clients", site.authority, second)
        site.let_in((AGENT, NEW_AGENT), (OPERATOR, NEW_OPERATOR))
        site.command.wait_event("auth_file_renewed")
        load.pass_looks()
        site.server.replace_with(second.issue("coordinator", [HOST]))
        site.node.replace_with(second.issue("node"))
        site.person.replace_with(second.issue("person"))
        site.write_token("node", NEW_AGENT)
        site.write_token("person", NEW_OPERATOR)
        load.pass_looks()
        site.trust("servers", second)
        site.trust("clients", second)
        site.let_in((NEW_AGENT,), (NEW_OPERATOR,))
        site.command.wait_event("auth_file_renewed", count=2)
        load.pass_looks()
        audits = site.command.events("audit")
        site.restart()
        agent.wait_event("coordinator_reached_again")
        load.pass_looks()
    audits += site.command.events("audit")
    with Client(world.target, access=outdated) as client:
        with pytest.raises(HandshakeFailed, match="of an unknown authority"):
            client.get_job(world.job_id)

    warnings = [event for event in audits if event["level"] == "warning"]
    ended = [(event["method"], event["effect"]) for event in warnings]
    assert ended == [("Session", "stream_ended")], "the agent's session had the old token"
    assert agent.events("access_refused") == []
    assert os.path.exists(f"/proc/{worker.pid}"), "it was restarted"
    worker.tell("exit", "0")
    assert agent.wait() == 0


def test_revoked_token_ends_sessions(site: Guarded) -> None:
    """At once: an agent with workers keeps them, and one without ends. A newer token helps."""
    agent = site.world.agent("n", *site.flags())
    (worker,) = site.world.mailbox.workers(1)
    waiting = site.world.agent("w", *site.flags(), "--job-id=another", nnodes="2")
    assert site.command is not None
    site.command.wait_event("audit", count=2)  # both sessions
    site.let_in((NEW_AGENT,), (OPERATOR,))
    event = agent.wait_event("access_refused", why="the coordinator refused: the access token")
    code = waiting.wait()
    site.write_token("node", NEW_AGENT)
    agent.wait_event("coordinator_reached_again")
    worker.tell("exit", "0")

    assert "workers keep running" in event["then"]
    assert code == 77
    assert agent.wait() == 0
    ended = [one for one in site.command.events("audit") if one.get("effect") == "stream_ended"]
    assert [one["outcome"] for one in ended] == ["ACCESS_TOKEN_INVALID"] * 2
