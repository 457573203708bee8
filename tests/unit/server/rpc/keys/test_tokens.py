"""Who may call KeyValueService: only a worker of the round that runs."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from support.core.key_calls import Code, Worker, change, failure, worker

CALLS: dict[str, dict[str, Any]] = {
    "GetKeys": {"keys": ["a"]},
    "WriteKeys": {"writes": [change("a", delete={})]},
    "ListKeys": {},
    "WatchKeys": {},
}
"""A valid request of every method."""


async def code_of(at: Worker, method: str, token: str | None) -> grpc.StatusCode:
    call = at.call(method, token, **CALLS[method])
    return (await failure(call.read() if method == "WatchKeys" else call))[0]


@pytest.mark.parametrize("times", [1, pytest.param(25, marks=pytest.mark.long)])
async def test_only_workers_of_the_round_may_call(times: int) -> None:
    """Not with no token, a forged one, that of another job or that of an earlier round."""
    async with worker() as at:
        other = at.server.agent("other", 9)
        await other.hello()
        foreign = (await other.read()).welcome.desired.run.worker_token
        await at.agent.report(leaving=agent_pb2.Leaving(round=1, text="again"))
        await at.agent.report(ready=agent_pb2.Ready(round=1, master_port=20_001))
        while not (message := await at.agent.read()).desired.HasField("run"):
            pass
        assert message.desired.run.header.number == 2
        current = message.desired.run.worker_token
        cases = {
            None: Code.UNAUTHENTICATED,
            "x": Code.UNAUTHENTICATED,
            current.replace("1.2.", "1.3.", 1): Code.UNAUTHENTICATED,
            foreign: Code.PERMISSION_DENIED,
            at.token: Code.ABORTED,
        }
        for _ in range(times):
            await at.agent.check_alive()  # on a busy machine all calls take longer than a lease
            calls = [code_of(at, method, token) for method in CALLS for token in cases]
            assert await asyncio.gather(*calls) == list(cases.values()) * len(CALLS)
        answer = await at.call("ListKeys", current)
        assert (answer.header.revision, list(answer.kvs)) == (0, [])
