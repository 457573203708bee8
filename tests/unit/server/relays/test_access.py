"""Agents of a relay at a coordinator that asks who calls: each is checked by its own token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from rallypoint.server.hosting import protecting
from rallypoint.server.rpc.relays import carrying
from support.access.protected import (
    AGENT,
    OTHER_AGENT,
    VIEWER,
    Site,
    bearer,
    entry,
    protected_site,
    write_rules,
)
from support.relays.carried import HandRelay, beat, opening

RELAY, OLD = "relay-token-0123456789abcdef", "old-agent-token-0123456789ab"
RULES = (
    entry("relay", "agent", RELAY, more='jobs = ["mine*"]')
    + entry("trainer", "agent", AGENT)
    + entry("former", "agent", OLD)
    + entry("dash", "viewer", VIEWER)
    + entry("other trainer", "agent", OTHER_AGENT, more='jobs = ["other*"]')
)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(protecting, "LOOK_S", 0.02)
    monkeypatch.setattr(carrying, "LOOK_S", 60.0)  # these relays show no life by themselves
    async with protected_site(tmp_path, rules=RULES, needs_client=False) as made:
        yield made


@pytest.fixture
async def channel(site: Site) -> AsyncIterator[grpc.aio.Channel]:
    async with site.channel() as made:
        yield made


@pytest.fixture
async def relay(channel: grpc.aio.Channel) -> HandRelay:
    return await HandRelay(channel, bearer(RELAY)).begin()


def bearing(token: str) -> str:
    return f"Bearer {token}"


async def test_own_token_counts(relay: HandRelay) -> None:
    """Not that of the relay, whose jobs are others."""
    await relay.send(opening(1, "theirs", authorization=bearing(AGENT)))

    assert (await relay.wait(1, "welcome")).HasField("welcome")


@pytest.mark.parametrize(
    ("token", "code"), [("", 16), ("wrong-token-0123456789", 16), (VIEWER, 7), (OTHER_AGENT, 7)]
)
async def test_stranger_is_refused_alone(relay: HandRelay, token: str, code: int) -> None:
    """Without a token, with a wrong one, one of another role, and one of another job."""
    shown = bearing(token) if token else ""
    await relay.send(
        opening(1, "mine", authorization=shown), opening(2, "b", authorization=bearing(AGENT))
    )

    assert code == (await relay.wait(1, "end")).code
    assert (await relay.wait(2, "welcome")).HasField("welcome")


async def test_relay_vouches_for_its_own_rights_alone(relay: HandRelay) -> None:
    """An agent whose certificate it has verified may join the jobs of the relay, and no other."""
    await relay.send(opening(1, "mine", is_certified=True), opening(2, "b", is_certified=True))

    assert (await relay.wait(1, "welcome")).HasField("welcome")
    assert 7 == (await relay.wait(2, "end")).code


async def test_revoked_agent_ends_alone(site: Site, relay: HandRelay) -> None:
    """Its token is taken out of the auth file; its neighbours and the relay stay."""
    await relay.send(
        opening(1, "a", authorization=bearing(OLD)), opening(2, "b", authorization=bearing(AGENT))
    )
    for number in (1, 2):
        await relay.wait(number, "welcome")
    former = entry("former", "agent", OLD)
    write_rules(site.auth, RULES.replace(former, ""))
    end = await relay.wait(1, "end")
    await relay.send(beat(2))

    assert 16 == end.code
    assert 1 == (await relay.wait(2, "acknowledgement")).acknowledgement.heartbeat


async def test_stranger_cannot_be_a_relay(channel: grpc.aio.Channel) -> None:
    """It needs the role of an agent."""
    stranger = HandRelay(channel, bearer(VIEWER))

    assert "PERMISSION_DENIED" == (await stranger.ending())[0]
