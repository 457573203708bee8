"""A job whose agent speaks by hand, with the tokens of its workers."""

from __future__ import annotations

from typing import Any

import grpc.aio
from msgspec import Struct

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import job_service_pb2_grpc as jobs_grpc
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from support.access.protected import OPERATOR, bearer
from support.core.served import LIMIT_S, Agent


class Rounds(Struct):
    """A job of one node, and an operator who moves it on."""

    channel: grpc.aio.Channel
    agent: Agent
    token: str
    """Of its agent."""
    round: int = 0
    worker: str = ""
    """The token of the workers of the latest round."""
    operator: str = OPERATOR

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """Return what a worker of the latest round shows of itself."""
        return ((WORKER_TOKEN_KEY, self.worker),)

    async def begin(self) -> None:
        """Wait for the order to run a round."""
        while True:
            message = await self.agent.read()
            desired = message.welcome.desired if message.HasField("welcome") else message.desired
            if desired.HasField("run") and desired.run.header.number > self.round:
                self.round = desired.run.header.number
                self.worker = desired.run.worker_token
                return

    async def next_round(self) -> None:
        """Let an operator restart the job, and the agent be ready for the next round."""
        await self._change("RestartJob", jobs_pb2.RestartJobRequest(job_id=self.agent.job_id))
        await self._ready()
        await self.begin()

    async def end_run(self) -> None:
        """Let an operator cancel the run, and wait until it is over."""
        await self._change("CancelJob", jobs_pb2.CancelJobRequest(job_id=self.agent.job_id))
        await self._ready()
        while not (await self.agent.read()).desired.HasField("finished"):
            pass

    async def leave(self) -> None:
        """Let the agent leave its job, whose run is over."""
        goodbye = agent_pb2.Goodbye(reason=agent_pb2.GOODBYE_REASON_FINISHED)
        await self.agent.report(goodbye=goodbye)
        await self.agent.ending()

    async def _ready(self) -> None:
        ready = agent_pb2.Ready(round=self.round, master_port=20_000 + self.round)
        await self.agent.report(ready=ready)

    async def _change(self, name: str, request: Any) -> None:
        stub = jobs_grpc.JobServiceStub(self.channel)
        await getattr(stub, name)(request, timeout=LIMIT_S, metadata=bearer(self.operator))


async def begun(channel: grpc.aio.Channel, job_id: str, token: str, number: int = 1) -> Rounds:
    """Return a new job whose first round runs."""
    call = agent_grpc.AgentServiceStub(channel).Session(metadata=bearer(token))
    agent = Agent(call, job_id, f"{number:032x}")
    await agent.hello()
    made = Rounds(channel, agent, token)
    await made.begin()
    return made
