"""What a host may do without a valid token is limited."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from rallypoint.base.open_files import raise_file_limit
from rallypoint.server.access.usage.quotas import HostRate
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.contract.limits import ATTEMPTS_PER_MINUTE_MAX, HOSTS_MAX
from rallypoint.server.core.messages.refusals import Limit
from support.access.protected import protected_site
from support.core.served import LIMIT_S


def rate() -> HostRate:
    """Return the limit of failed attempts."""
    name = "ATTEMPTS_PER_MINUTE_MAX"
    return HostRate(Limit.FAILED_ATTEMPTS_PER_HOST, name, name)


def fail_often(attempts: HostRate, host: str, now_s: float) -> int:
    """Fail until the limit; return how often that was allowed."""
    for count in range(2 * ATTEMPTS_PER_MINUTE_MAX):
        try:
            attempts.use(host, now_s)
        except LimitExceeded as exceeded:
            assert Limit.FAILED_ATTEMPTS_PER_HOST is exceeded.limit
            assert exceeded.retry_s is not None
            return count
    raise AssertionError("no limit")


def test_attempts_of_a_host_are_limited() -> None:
    """To so many a minute; another host has its own limit, and the log has one line."""
    attempts = rate()
    with capture_logs() as lines:
        first = fail_often(attempts, "a", 0)
        again = fail_often(attempts, "a", 6)
        other = fail_often(attempts, "b", 6)

    expected = (ATTEMPTS_PER_MINUTE_MAX, ATTEMPTS_PER_MINUTE_MAX // 10, ATTEMPTS_PER_MINUTE_MAX)
    assert expected == (first, again, other)
    assert ["a", "b"] == [line["host"] for line in lines if line["event"] == "host_limited"]


def test_hosts_that_fail_are_forgotten() -> None:
    """The one that has failed least lately, when there are too many."""
    attempts = rate()
    fail_often(attempts, "a", 0)
    for number in range(HOSTS_MAX):
        attempts.use(f"host{number}", 0)

    assert ATTEMPTS_PER_MINUTE_MAX == fail_often(attempts, "a", 0)
    assert ATTEMPTS_PER_MINUTE_MAX > fail_often(attempts, f"host{HOSTS_MAX - 1}", 0)


async def test_what_anyone_may_call_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many watches of the health from one host; a broken message of it has no line."""
    monkeypatch.setattr(limits, "HEALTH_WATCHES_PER_HOST_MAX", 2)
    with capture_logs() as lines:
        async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            calls = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
            for call in calls:
                await call.read()
            with pytest.raises(grpc.aio.AioRpcError) as watched:
                await stub.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S).read()
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            with pytest.raises(grpc.aio.AioRpcError) as checked:
                await check(b"\xff", timeout=LIMIT_S)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
            for call in calls:
                call.cancel()

    assert grpc.StatusCode.RESOURCE_EXHAUSTED is watched.value.code()
    assert grpc.StatusCode.INVALID_ARGUMENT is checked.value.code()
    assert health_pb2.HealthCheckResponse.SERVING == answer.status
    rejected = [line["log_level"] for line in lines if line["event"] == "message_rejected"]
    assert ["debug"] == rejected


@pytest.mark.parametrize(("soft", "hard"), [(256, 4_096), (4_096, 4_096)])
def test_every_file_that_the_system_allows_may_be_open(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int
) -> None:
    """A coordinator has a descriptor for each connection; the usual limit is low."""
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, values: made.append(values))
    raise_file_limit()

    assert ([] if soft == hard else [(hard, hard)]) == made
