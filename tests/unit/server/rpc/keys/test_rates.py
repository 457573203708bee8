"""A job that changes large keys without end slows only itself down."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.server.core.keys.writes import count_bytes
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.rpc.calls import LimitExceeded
from rallypoint.server.rpc.convert.keys import to_writes
from rallypoint.server.rpc.guards.allowances import JobBytes
from rallypoint.server.rpc.keys import service
from rallypoint.server.rpc.keys.service import SMALL_BYTES
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from support.core.key_calls import Code, Worker, change, failure, worker

LARGE = b"v" * SMALL_BYTES
HALF = b"v" * (SMALL_BYTES // 2)
JOB = JobId("job")


@pytest.fixture
def one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may make one large change in hours."""
    monkeypatch.setattr(service, "BYTES_PER_S_MAX", 1)


async def check_refused(call: Any) -> None:
    """Check that a change is refused for now."""
    code, text, detail = await failure(call)
    assert code is Code.RESOURCE_EXHAUSTED
    assert "bytes a second with which one job changes keys" in text
    assert detail.kind == details_pb2.LIMIT_KIND_KEYS
    assert detail.HasField("retry_after")


@pytest.mark.usefixtures("one_change")
async def test_large_changes_are_made_at_a_limited_rate() -> None:
    """Of the same keys, too. Small changes, reads and other jobs do not suffer."""
    async with worker() as at:
        await at.put("a", LARGE)
        await check_refused(at.put("a", LARGE))
        await check_refused(at.put("b", LARGE))
        await at.put("c", HALF)
        assert {"a": LARGE, "c": HALF} == await at.get("a", "b", "c")
        agent = at.server.agent("other", 9)
        await agent.hello()
        order = (await agent.read()).welcome.desired.run
        await Worker(at.server, agent, order.worker_token).put("a", LARGE)


@pytest.mark.usefixtures("one_change")
async def test_appends_count_what_they_make() -> None:
    """The journal gets the whole value each time."""
    async with worker() as at:
        await at.write("a", append={"value": HALF})
        await at.write("a", append={"value": HALF})
        await check_refused(at.write("a", append={"value": b"v"}))


@pytest.mark.usefixtures("one_change")
async def test_change_that_counts_for_no_worker_spends_nothing() -> None:
    """Its token is not genuine."""
    async with worker() as at:
        forged = at.token[:-1] + ("0" if at.token[-1] != "0" else "1")
        writes = [change("a", put={"value": LARGE})]
        code, _, _ = await failure(at.call("WriteKeys", forged, writes=writes))
        assert code is Code.UNAUTHENTICATED
        await at.put("a", LARGE)


def test_change_waits_for_those_before_it() -> None:
    """In order, as long as it may; one that may not spends nothing."""
    bytes = JobBytes(Limit.KEY_RATE, 10, at_once=20)
    waits_s = [bytes.use(JOB, 25, 100.0, patience_s=4.0) for _ in range(2)]
    with pytest.raises(LimitExceeded) as caught:
        bytes.use(JOB, 25, 100.0, patience_s=1.0)
    waits_s += [bytes.use(JOB, 1, 101.0, patience_s=4.0), bytes.use(JobId("other"), 1, 101.0)]

    assert [0.0, 0.5, 2.0, 0.0] == waits_s
    assert (Limit.KEY_RATE, 10, 2.0) == (
        caught.value.limit,
        caught.value.value,
        caught.value.retry_s,
    )


def test_bytes_of_many_appends() -> None:
    """To a key that a request has made itself, too."""
    append = change("ab", append={"value": b"123"})
    put = change("c", put={"value": b"1234"})
    request = keys_pb2.WriteKeysRequest(job_id=JOB, writes=[append, append, put, append])
    claim = inputs.Claim(JOB, run=1, round=1, token="", is_signed=True)

    assert 3 * 2 + 3 + 6 + 9 + 1 + 4 == count_bytes(None, to_writes(request, claim, 0))
