"""One host fills no disk with lines of the log, and no flood of one kind hides another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from rallypoint.server.access import protecting
from rallypoint.server.access.audit import Audit, Call
from rallypoint.server.access.caller import Caller, Proof
from rallypoint.server.access.usage import peers
from rallypoint.server.access.usage.lines import MINUTE_S, Kind, Lines
from rallypoint.server.contract.limits import (
    HOSTS_MAX,
    LINES_PER_MINUTE_MAX,
    LINES_PER_RELAY_MAX,
    RUNS_PER_MINUTE_MAX,
    RUNS_PER_RELAY_MAX,
)
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import job_service_pb2_grpc as jobs_grpc
from rallypoint.wire.access import Role
from support.access.protected import (
    AGENT,
    HOST,
    OPERATOR,
    RELAY,
    WRONG,
    bearer,
    protected_site,
)
from support.core.served import LIMIT_S, Agent, Served, hello_of, served
from support.relays.carried import HandRelay, envelope, opening

MORE = 5
"""Lines beyond the limit."""
MANY = LINES_PER_MINUTE_MAX + MORE
OF_JOBS = {"run_opened", "node_joined", "node_left", "round_sealed", "run_closed"}
OTHER_SPEC = job_pb2.JobSpec(min_nodes=1, max_nodes=7)
CALLER = Caller("trainer", (Role.AGENT,), Proof.TOKEN)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """Return the events that are logged, as they come."""
    with capture_logs() as lines:
        yield lines


@pytest.fixture(autouse=True)
def minute_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no minute of a coordinator end while a slow machine makes many calls."""
    for module in (peers, protecting):
        monkeypatch.setattr(module, "Lines", lambda _: Lines(Clock()))


def count(lines: list[Any], **facts: Any) -> int:
    """Return how many lines have all these facts."""
    return sum(all(line.get(name) == fact for name, fact in facts.items()) for line in lines)


def call_from(peer: str) -> Call:
    return Call("/rallypoint.v1.AgentService/Session", peer, "", "job")


def test_kinds_have_their_own_allotments(lines: list[Any]) -> None:
    """Refusals hide no admission; each has one line a minute with the number of the others."""
    clock = Clock()
    made = Lines(clock)
    audit, call, other = Audit(made), call_from("ipv4:10.0.0.1:1"), call_from("ipv4:10.0.0.2:1")
    for _ in range(MANY):
        audit.refuse(call, (), "ACCESS_TOKEN_INVALID")
    for _ in range(MANY + 1):
        audit.admit(call, CALLER)
    audit.refuse(other, (), "ACCESS_TOKEN_INVALID")
    made.flush()
    before = len(lines)
    clock.now_s += MINUTE_S
    made.flush()
    made.flush()

    assert 2 * LINES_PER_MINUTE_MAX + 1 == before == count(lines, event="audit")
    assert [("10.0.0.1", MORE, None), ("10.0.0.1", None, MORE + 1)] == [
        (line["host"], line.get("more_refusals"), line.get("more_admissions"))
        for line in lines[before:]
    ]


def test_last_lines_are_counted_at_the_end(lines: list[Any]) -> None:
    """Also when the minute is not over."""
    made = Lines(Clock())
    for _ in range(MANY):
        made.allow(("10.0.0.1",), Kind.OTHER)
    made.close()
    made.close()

    assert [MORE] == [line["more_lines"] for line in lines]


def test_changes_are_never_left_out(lines: list[Any]) -> None:
    """However many an operator makes."""
    audit = Audit(Lines(Clock()))
    for _ in range(MANY):
        audit.change(call_from("ipv4:10.0.0.1:1"), CALLER, "OK")

    assert MANY == count(lines, event="audit")


def test_relay_shares_its_lines(lines: list[Any]) -> None:
    """Each host that it names has its own; all together have so many. Few hosts are remembered."""
    made = Lines(Clock())
    hosts = [f"10.0.{number // 256}.{number % 256} via 10.9.9.9" for number in range(HOSTS_MAX)]
    one = sum(made.allow((hosts[0], "10.9.9.9"), Kind.ADMISSION) for _ in range(MANY))
    all_ = sum(made.allow((host, "10.9.9.9"), Kind.ADMISSION) for host in hosts)
    made.close()

    assert (LINES_PER_MINUTE_MAX, LINES_PER_RELAY_MAX) == (one, one + all_)
    assert made.allow(("10.9.9.9",), Kind.ADMISSION)
    assert {hosts[0]: MORE + 1, "via 10.9.9.9": HOSTS_MAX - 1 - all_} == {
        line["host"]: line["more_admissions"] for line in lines
    }


def test_hosts_are_forgotten() -> None:
    """The one that has begun first, when there are too many."""
    made = Lines(Clock())
    for _ in range(MANY):
        made.allow(("10.0.0.1",), Kind.OTHER)
    for number in range(HOSTS_MAX):
        made.allow((f"host{number}",), Kind.OTHER)

    assert made.allow(("10.0.0.1",), Kind.OTHER)


async def refused(server: Served, number: int, **fields: Any) -> None:
    agent = server.agent("j", number)
    await agent.hello(**fields)
    assert (await agent.ending())[0] is not grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("fields", "event"),
    [({"spec": OTHER_SPEC}, "input_refused"), ({"job_id": "x" * 300}, "hello_rejected")],
)
async def test_refused_hellos_are_limited(
    lines: list[Any], fields: dict[str, Any], event: str
) -> None:
    """Those that break the contract, and those that fit no job; at a coordinator for anyone."""
    async with served() as server:
        await server.join("j", 1)
        for number in range(2, 2 + MANY):
            await refused(server, number, **fields)

    assert LINES_PER_MINUTE_MAX == count(lines, event=event)
    assert 1 == count(lines, event="log_shortened", host="127.0.0.1", more_lines=MORE)
    assert max(len(str(line.get("job_id", ""))) for line in lines) <= 255


async def test_messages_are_limited(lines: list[Any]) -> None:
    """That agents send after their Hello."""
    bad = agent_pb2.Exited(round=1)
    bad.workers.add(local_rank=7)
    async with served() as server:
        for number in range(1, 1 + MANY):
            agent = server.agent(f"j{number}", number)
            await agent.hello()
            await agent.read()
            await agent.report(exited=bad)
            assert grpc.StatusCode.INVALID_ARGUMENT is (await agent.ending())[0]

    assert LINES_PER_MINUTE_MAX == count(lines, event="message_rejected")
    assert 1 == count(lines, event="log_shortened", more_lines=MORE)


async def test_runs_with_lines_are_limited(lines: list[Any]) -> None:
    """Of a host that opens one run after the other; the others have no line at all."""
    opened = [f"j{number}" for number in range(RUNS_PER_MINUTE_MAX + MORE)]
    async with served() as server:
        for number, job_id in enumerate(opened, 1):
            agent = server.agent(job_id, number)
            await agent.hello()
            await agent.read()
            await agent.report(goodbye=agent_pb2.Goodbye(text="enough"))
            await agent.ending()

    assert opened[:-MORE] == [one["job_id"] for one in lines if one["event"] == "run_opened"]
    assert RUNS_PER_MINUTE_MAX == count(lines, event="node_left")
    assert {*opened[:-MORE]} == {one["job_id"] for one in lines if one["event"] in OF_JOBS}
    assert 1 == count(lines, event="log_shortened", host="127.0.0.1", more_runs=MORE)


async def test_nodes_of_a_run_have_lines(lines: list[Any]) -> None:
    """However many a host has: only runs that it opens are counted."""
    async with served() as server:
        for number in range(1, RUNS_PER_MINUTE_MAX + MORE + 1):
            agent = server.agent("j", number)
            await agent.hello()
            await agent.read()

    assert RUNS_PER_MINUTE_MAX + MORE == count(lines, event="node_joined", job_id="j")


def test_runs_of_a_relay_have_lines_of_their_own() -> None:
    """They are more than those of a host."""
    made = Lines(Clock())
    all_ = sum(
        made.allow((f"{number % 8} via relay", "relay"), Kind.RUN)
        for number in range(8 * RUNS_PER_MINUTE_MAX)
    )

    assert RUNS_PER_RELAY_MAX == all_


async def test_refused_requests_are_limited(lines: list[Any]) -> None:
    """Their audit lines are not, where the coordinator has them."""
    async with served() as server:
        stub = jobs_grpc.JobServiceStub(server.channel)
        for _ in range(MANY):
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.CancelJob(
                    jobs_pb2.CancelJobRequest(job_id="none", request_id="r"), timeout=LIMIT_S
                )

    assert LINES_PER_MINUTE_MAX == count(lines, event="input_refused", input="CancelJob")
    assert 1 == count(lines, event="log_shortened", host="unknown", more_lines=MORE)


async def test_admissions_are_limited_and_changes_are_not(tmp_path: Path, lines: list[Any]) -> None:
    """A flood of refusals hides neither."""
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        stub, agents = jobs_grpc.JobServiceStub(channel), agent_grpc.AgentServiceStub(channel)
        for token in (WRONG, OPERATOR):
            for _ in range(MANY):
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.CancelJob(
                        jobs_pb2.CancelJobRequest(job_id="none", request_id="r"),
                        timeout=LIMIT_S,
                        metadata=bearer(token),
                    )
        for number in range(1, 1 + MANY):
            agent = Agent(agents.Session(metadata=bearer(AGENT)), f"j{number}", f"{number:032x}")
            await agent.hello()
            await agent.read()
            agent.call.cancel()

    assert LINES_PER_MINUTE_MAX == count(lines, event="audit", outcome="ACCESS_TOKEN_INVALID")
    assert MANY == count(lines, event="audit", method="CancelJob", caller="ann")
    assert LINES_PER_MINUTE_MAX == count(lines, event="audit", outcome="allowed")
    assert 1 == count(lines, event="audit_shortened", more_refusals=MORE)
    assert 1 == count(lines, event="audit_shortened", more_admissions=MORE)


async def test_agents_of_a_relay_count_for_their_hosts(tmp_path: Path, lines: list[Any]) -> None:
    """One that is admitted in a loop hides no other node of the rack."""
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        relay = await HandRelay(channel, bearer(RELAY)).begin()
        shown = {"authorization": f"Bearer {AGENT}"}
        for number in range(1, 1 + MANY):
            await relay.send(opening(number, f"j{number}", peer="ipv4:10.0.0.1:1", **shown))
            await relay.wait(number, "welcome")
        await relay.send(opening(MANY + 1, "other", peer="ipv4:10.0.0.2:1", **shown))
        await relay.wait(MANY + 1, "welcome")
        for number in range(MANY + 2, 2 * MANY + 2):
            made = opening(number, "j1", peer="ipv4:10.0.0.1:1", **shown)
            hello = hello_of("j1", number)
            hello.spec.CopyFrom(OTHER_SPEC)
            made.opening.hello = envelope(number, hello=hello)
            await relay.send(made)
            await relay.wait(number, "end")

    admitted = Counter(
        line["peer"].split(" via ")[0] for line in lines if line.get("outcome") == "allowed"
    )
    assert LINES_PER_MINUTE_MAX == admitted["ipv4:10.0.0.1:1"]
    assert 1 == admitted["ipv4:10.0.0.2:1"]
    assert LINES_PER_MINUTE_MAX == count(lines, event="input_refused")
    named = f"10.0.0.1 via {HOST}"
    assert 1 == count(lines, event="log_shortened", host=named, more_lines=MORE)


def test_addresses_have_one_form(lines: list[Any]) -> None:
    """gRPC escapes the brackets of IPv6, and a line does not."""
    audit = Audit(Lines(Clock()))
    call = Call("/s/GetJob", "ipv6:%5B::1%5D:7 via ipv6:%5B::2%5D:9", "::1")
    audit.refuse(call, (), "ACCESS_TOKEN_MISSING")
    audit.change(call, CALLER, "OK")

    assert ["ipv6:[::1]:7 via ipv6:[::2]:9"] * 2 == [line["peer"] for line in lines]
