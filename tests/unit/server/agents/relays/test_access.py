"""Agents of a relay at a coordinator that asks who calls: each is checked by its own token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from structlog.testing import capture_logs

from rallypoint.base.log import merge_context
from rallypoint.server.access import protecting
from rallypoint.server.agents.relays import carrying
from rallypoint.server.contract import limits
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_service_pb2, job_service_pb2_grpc
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
from support.core.served import LIMIT_S
from support.relays.carried import Entry, HandRelay, beat, opening

RELAY, OLD = "relay-token-0123456789abcdef", "old-agent-token-0123456789ab"
EVERY = "token-of-the-environment-0123"
RULES = (
    entry("relay", "relay", RELAY)
    + entry("trainer", "agent", AGENT)
    + entry("former", "agent", OLD)
    + entry("dash", "viewer", VIEWER)
    + entry("other trainer", "agent", OTHER_AGENT, more='jobs = ["other*"]')
)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(protecting, "LOOK_S", 0.02)
    monkeypatch.setattr(carrying, "LOOK_S", 60.0)  # these relays show no life by themselves
    async with protected_site(tmp_path, rules=RULES, needs_client=False, token=EVERY) as made:
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


@pytest.mark.parametrize("token", [RELAY, EVERY])
async def test_relay_lends_nobody_its_token(channel: grpc.aio.Channel, token: str) -> None:
    """Whatever its roles: an agent without a token is refused, with a verified certificate, too."""
    relay = await HandRelay(channel, bearer(token)).begin()
    await relay.send(opening(1, "mine", is_certified=True), opening(2, "b"))

    assert [16, 16] == [await relay.outcome(number) for number in (1, 2)]


CERTIFICATES = """
[[certificate]]
name = "rack-*"
role = "relay"
[[certificate]]
name = "rack-1"
role = "agent"
jobs = ["mine*"]
"""


@pytest.mark.parametrize(("name", "codes"), [("rack-1", [0, 7]), ("rack-2", [16, 16])])
async def test_certificate_of_the_relay_may_be_that_of_agents(
    tmp_path: Path, name: str, codes: list[int]
) -> None:
    """It may join the jobs that an entry gives it as an agent; without one it joins none."""
    async with (
        protected_site(tmp_path, rules=CERTIFICATES) as site,
        site.channel(site.authority.issue(name)) as channel,
    ):
        relay = await HandRelay(channel).begin()
        await relay.send(opening(1, "mine", is_certified=True), opening(2, "b", is_certified=True))
        found = [await relay.outcome(number) for number in (1, 2)]

    assert codes == found


async def test_relay_is_one_host(relay: HandRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever addresses it names: its agents together are in as many jobs as those of a host."""
    monkeypatch.setattr(limits, "JOBS_PER_HOST_MAX", 2)
    peers = [f"ipv4:10.0.0.{number}:9" for number in (1, 2, 3)]
    for number, peer in enumerate(peers, 1):
        await relay.send(opening(number, f"j{number}", peer=peer, authorization=bearing(AGENT)))

    assert [0, 0, 8] == [await relay.outcome(number) for number in (1, 2, 3)]


async def test_address_is_the_word_of_the_relay(relay: HandRelay) -> None:
    """Its audit line names both; what is no address is left out."""
    with capture_logs(processors=[merge_context]) as lines:
        for number, peer in enumerate(("ipv4:10.0.0.9:1", "ipv4:ann was here", "ipv4:"), 1):
            await relay.send(opening(number, "a", peer=peer, authorization=bearing(AGENT)))
            await relay.outcome(number)
        await relay.send(opening(4, "a", peer="ipv4:10.0.0.9:1", authorization=bearing(VIEWER)))
        await relay.outcome(4)
    shown = [line["peer"].split(" via ") for line in lines if line["event"] == "audit"]

    assert ["ipv4:10.0.0.9:1", None, None, "ipv4:10.0.0.9:1"] == [
        names[0] if len(names) == 2 else None for names in shown
    ]
    assert all(names[-1].startswith("ipv4:127.0.0.1:") for names in shown)


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


@pytest.mark.parametrize("token", [VIEWER, AGENT, OTHER_AGENT])
async def test_stranger_cannot_be_a_relay(channel: grpc.aio.Channel, token: str) -> None:
    """Agents do not have that right."""
    stranger = HandRelay(channel, bearer(token))

    assert "PERMISSION_DENIED" == (await stranger.ending())[0]


async def test_relay_is_nothing_else(channel: grpc.aio.Channel) -> None:
    """Its token joins no job and reads none."""
    stub = job_service_pb2_grpc.JobServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        request = job_service_pb2.GetJobRequest(job_id="a")
        await stub.GetJob(request, timeout=LIMIT_S, metadata=bearer(RELAY))

    assert "PERMISSION_DENIED" == raised.value.code().name


async def test_token_of_one_team_leaves_room_for_others(
    relay: HandRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is bound to jobs may be in so many; one of the site may be in all."""
    monkeypatch.setattr(limits, "JOBS_PER_TOKEN_MAX", 2)
    tokens = [OTHER_AGENT] * 3 + [AGENT] * 3
    for number, token in enumerate(tokens, 1):
        await relay.send(opening(number, f"other{number}", authorization=bearing(token)))

    assert [0, 0, 8, 0, 0, 0] == [await relay.outcome(number) for number in range(1, 7)]
    await relay.send(Entry(stream=1, closing=agent_pb2.RelayedClosing(still_reads=True)))
    await relay.wait(1, "end")
    await relay.send(opening(7, "other7", authorization=bearing(OTHER_AGENT)))
    assert 0 == await relay.outcome(7)
