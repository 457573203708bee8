"""A stream ends when its caller is refused by now: a token or a role is gone, or has expired."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.access import gate, protecting
from rallypoint.server.access.gate import Gate
from rallypoint.server.access.protecting import Protected
from rallypoint.server.access.protection import Protection
from rallypoint.server.access.refusals import AccessRefused, token_missing
from rallypoint.server.access.rules import Rules, parse_rules
from rallypoint.server.core.model.spec import Timing
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import event_service_pb2_grpc as events_grpc
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from rallypoint.wire.errors import unpack_details
from support.access.protected import bearer, entry, protected_site, write_rules
from support.core.served import LIMIT_S, Agent
from support.routing.fleet import fleet, job_of

OLD, NEW, OTHER = "the-old-token-012345", "the-new-token-012345", "another-token-012345"
NO_ONE, NO_RIGHT = "UNAUTHENTICATED", "PERMISSION_DENIED"
STRANGER = entry("other", "viewer", OTHER)
Metadata = tuple[tuple[str, str], ...]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the files all the time."""
    monkeypatch.setattr(protecting, "LOOK_S", 0.02)


async def join(channel: grpc.aio.Channel, token: str, number: int = 1, job_id: str = "a") -> Agent:
    """Return a session that was let in."""
    call = agent_grpc.AgentServiceStub(channel).Session(metadata=bearer(token))
    agent = Agent(call, job_id, f"{number:032x}")
    await agent.hello()
    await agent.read()
    return agent


async def watch(channel: grpc.aio.Channel, metadata: Metadata, job_id: str = "a") -> Any:
    """Return a watch of the events of a job that has had its first answer."""
    call = events_grpc.EventServiceStub(channel).WatchEvents(
        events_pb2.WatchEventsRequest(job_id=job_id), metadata=metadata
    )
    async with asyncio.timeout(LIMIT_S):
        await call.read()
    return call


async def ending(call: Any) -> tuple[str, str]:
    """Return how a stream ends: status and reason."""
    async with asyncio.timeout(LIMIT_S):
        code = await call.code()
        return code.name, unpack_details(await call.trailing_metadata()).reason


def ended(lines: list[Any]) -> list[tuple[str, str, str]]:
    """Return the audit lines of streams that were ended: caller, method, outcome."""
    found = [line for line in lines if line.get("effect") == "stream_ended"]

    assert all((line["event"], line["log_level"]) == ("audit", "warning") for line in found)
    return [(line["caller"], line["method"], line["outcome"]) for line in found]


async def renewed(lines: list[Any], count: int = 1) -> None:
    """Wait until the auth file was read so often, and streams were checked after that."""
    async with asyncio.timeout(LIMIT_S):
        while [one["event"] for one in lines].count("auth_file_renewed") < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


CHANGES = {
    "token removed": (entry("x", "agent", NEW), NO_ONE, "ACCESS_TOKEN_INVALID"),
    "role changed": (entry("x", "viewer", OLD), NO_RIGHT, "ROLE_NOT_ALLOWED"),
    "job taken": (entry("x", "agent", OLD, more='jobs = ["b*"]'), NO_RIGHT, "JOB_NOT_ALLOWED"),
    "expired": (
        entry("x", "agent", OLD, more="expires = 2020-01-01T00:00:00Z"),
        NO_ONE,
        "ACCESS_TOKEN_EXPIRED",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_session_ends(tmp_path: Path, lines: list[Any], change: str) -> None:
    """With the status that a new call would get, and one audit line; those of others stay."""
    rules, code, reason = CHANGES[change]
    first = entry("x", "agent", OLD) + STRANGER
    async with (
        protected_site(tmp_path, rules=first, needs_client=False) as site,
        site.channel() as channel,
    ):
        agent = await join(channel, OLD)
        other = await watch(channel, bearer(OTHER))
        write_rules(site.auth, rules + STRANGER)

        assert (code, reason) == await ending(agent.call)
        assert [("x", "Session", reason)] == ended(lines)
        assert not other.done()


async def test_session_stays_in_the_job_that_its_token_may_touch(
    tmp_path: Path, lines: list[Any]
) -> None:
    """A job was taken from the token: its session does not continue by naming one that is left."""
    rules = entry("x", "agent", OLD, more='jobs = ["a", "b"]')
    async with (
        protected_site(tmp_path, rules=rules, needs_client=False) as site,
        site.channel() as channel,
    ):
        agent = await join(channel, OLD)
        await agent.check_alive()
        write_rules(site.auth, entry("x", "agent", OLD, more='jobs = ["b"]'))

        assert (NO_RIGHT, "JOB_NOT_ALLOWED") == await ending(agent.call)
        call = agent_grpc.AgentServiceStub(channel).Session(metadata=bearer(OLD))
        again = Agent(call, "b", agent.session_id, 2, epoch=agent.epoch, token=agent.token)
        await again.hello()
        assert (NO_RIGHT, "OTHER_JOB") == await ending(again.call)
    refused = [line for line in lines if line["event"] == "input_refused"]
    assert ["other job"] == [line["why"] for line in refused]


async def test_certificate_loses_its_role(tmp_path: Path, lines: list[Any]) -> None:
    """A stream that was let in by the name in it ends; one with another role stays."""
    named = '[[certificate]]\nname = "{}"\nrole = "{}"\n'
    both = named.format("ops-1", "viewer") + named.format("ops-2", "viewer")
    async with protected_site(tmp_path, rules=both) as site:
        async with (
            site.channel(site.authority.issue("ops-1")) as first,
            site.channel(site.authority.issue("ops-2")) as second,
        ):
            gone, kept = await watch(first, ()), await watch(second, ())
            write_rules(site.auth, named.format("ops-2", "operator"))

            assert (NO_ONE, "ACCESS_TOKEN_MISSING") == await ending(gone)
            assert not kept.done()
    assert [("ops-1", "WatchEvents", "ACCESS_TOKEN_MISSING")] == ended(lines)


async def test_overlap_ends_nothing(tmp_path: Path, lines: list[Any]) -> None:
    """While both tokens count, streams of both stay; then those of the old one end, and no other.

    The node of the session is not lost at once: with the new token it resumes within its lease.
    """
    rules, timing = entry("x", "agent", OLD), Timing(window_ms=0, reconnect_grace_ms=1)
    async with (
        protected_site(tmp_path, rules=rules, needs_client=False, timing=timing) as site,
        site.channel() as channel,
    ):
        agent = await join(channel, OLD)
        for count, note in enumerate(("", "# as before"), 1):
            write_rules(site.auth, entry("x", "agent", OLD, NEW) + note)
            await renewed(lines, count)  # at the second look, the first check is over
        await agent.check_alive()
        watcher = await watch(channel, bearer(NEW))

        assert [] == ended(lines)
        write_rules(site.auth, entry("x", "agent", NEW))
        assert (NO_ONE, "ACCESS_TOKEN_INVALID") == await ending(agent.call)
        call = agent_grpc.AgentServiceStub(channel).Session(metadata=bearer(NEW))
        again = Agent(call, "a", agent.session_id, 2, epoch=agent.epoch, token=agent.token)
        await again.hello()
        assert (await again.read()).HasField("welcome")
        await again.check_alive()
        assert not watcher.done()
        happened = await events_grpc.EventServiceStub(channel).ListEvents(
            events_pb2.ListEventsRequest(job_id="a"), timeout=LIMIT_S, metadata=bearer(NEW)
        )

    assert [("x", "Session", "ACCESS_TOKEN_INVALID")] == ended(lines)
    kinds = [one.WhichOneof("detail") for one in happened.events]
    assert "node_resumed" in kinds
    assert "node_departed" not in kinds


async def test_token_expires(
    tmp_path: Path, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has not changed: its time is over."""
    ends = datetime.now(UTC) + timedelta(hours=1)
    rules = entry("x", "viewer", OLD, more=f"expires = {ends.isoformat()}")
    async with (
        protected_site(tmp_path, rules=rules + STRANGER, needs_client=False) as site,
        site.channel() as channel,
    ):
        call, other = await watch(channel, bearer(OLD)), await watch(channel, bearer(OTHER))
        monkeypatch.setattr(gate, "_unix_ms", lambda: round(ends.timestamp() * 1000))

        assert (NO_ONE, "ACCESS_TOKEN_EXPIRED") == await ending(call)
        assert not other.done()
    assert [("x", "WatchEvents", "ACCESS_TOKEN_EXPIRED")] == ended(lines)


async def test_worker_stays(tmp_path: Path, lines: list[Any]) -> None:
    """Its own token ends with its round, not with the token of its agent."""
    async with (
        protected_site(tmp_path, rules=entry("x", "agent", OLD), needs_client=False) as site,
        site.channel() as channel,
    ):
        call = agent_grpc.AgentServiceStub(channel).Session(metadata=bearer(OLD))
        agent = Agent(call, "a", f"{1:032x}")
        await agent.hello()
        token = (await agent.read()).welcome.desired.run.worker_token
        worker = await watch(channel, ((WORKER_TOKEN_KEY, token),))
        write_rules(site.auth, STRANGER)
        await ending(agent.call)

        assert not worker.done()
    assert [("x", "Session", "ACCESS_TOKEN_INVALID")] == ended(lines)


async def test_session_without_hello_ends(tmp_path: Path, lines: list[Any]) -> None:
    """Its job is not known yet."""
    async with (
        protected_site(tmp_path, rules=entry("x", "agent", OLD), needs_client=False) as site,
        site.channel() as channel,
    ):
        call: Any = agent_grpc.AgentServiceStub(channel).Session(metadata=bearer(OLD))
        await call.wait_for_connection()
        watching = await watch(channel, bearer(OLD))  # answered after the session has arrived
        write_rules(site.auth, STRANGER)

        for one in (call, watching):
            assert (NO_ONE, "ACCESS_TOKEN_INVALID") == await ending(one)
    assert sorted(ended(lines)) == [
        ("x", method, "ACCESS_TOKEN_INVALID") for method in ("Session", "WatchEvents")
    ]


class Source:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules


async def test_forwarded_watch_ends(lines: list[Any]) -> None:
    """At the coordinator that the client has called, which alone asks who calls."""
    sources = [Source(parse_rules(entry("x", "viewer", OLD) + STRANGER)) for _ in range(2)]
    gates = [Gate(source) for source in sources]
    for one in gates:
        one.identities.use(b"of the store")
    asks = Protection(authenticates=True)
    async with fleet(protected=[Protected(asks, one) for one in gates]) as both:
        calls = [await watch(both.members[0].channel, bearer(OLD), job_of(n)) for n in (0, 1)]
        sources[1].rules = parse_rules(STRANGER)  # of the owner
        await gates[1].check_streams()
        kept = await watch(both.members[0].channel, bearer(OLD), job_of(1))
        sources[0].rules = parse_rules(STRANGER)
        await gates[0].check_streams()

        assert [(NO_ONE, "ACCESS_TOKEN_INVALID")] * 3 == [
            await ending(call) for call in (*calls, kept)
        ]
    assert [("x", "WatchEvents", "ACCESS_TOKEN_INVALID")] * 3 == ended(lines)


async def test_stream_that_cannot_be_checked_keeps_no_other_one() -> None:
    """All others are checked, and all are checked again at the next look."""
    source = Source(parse_rules(STRANGER))
    made, checked, ended = Gate(source), list[str](), list[AccessRefused]()

    def fail() -> AccessRefused | None:
        checked.append("broken")
        raise LookupError("a bug")

    def refuse() -> AccessRefused | None:
        checked.append("sound")
        return token_missing()

    made.streams.hold(fail, ended.append)
    made.streams.hold(refuse, ended.append)
    source.rules = parse_rules(STRANGER)
    for _ in range(2):
        with pytest.raises(ExceptionGroup):
            await made.check_streams()

    assert ["broken", "broken", "sound"] == sorted(checked)
    assert ["ACCESS_TOKEN_MISSING"] == [refused.reason for refused in ended]
