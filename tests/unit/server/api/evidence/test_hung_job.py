"""A served coordinator examines a suspicion by itself: it asks, is answered, and shows the outcome.

The agents speak the protocol by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rallypoint.client import AsyncClient
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import evidence_pb2, job_pb2, node_pb2
from rallypoint.v1 import evidence_service_pb2 as service_pb2
from rallypoint.v1 import evidence_service_pb2_grpc as service_grpc
from rallypoint.wire.durations import to_duration
from support.core.served import LIMIT_S, Agent, Served, hello_of, served

STILL_MS = 300_000
TERMS: dict[str, Any] = {"min_protocol_version": 1, "capabilities": [agent_pb2.CAPABILITY_EVIDENCE]}


async def stand_still(server: Served) -> tuple[Agent, agent_pb2.RunOrder]:
    """Return an agent whose only worker stands still, and what it runs."""
    agent = server.agent("job", 1)
    await agent.hello(**TERMS)
    order = (await agent.read()).welcome.desired.run
    agent.round = order.header.number
    await agent.report(started=agent_pb2.Started(round=agent.round, pids=[7]))
    still_for = to_duration(STILL_MS)
    await agent.report(progress=agent_pb2.Progress(round=agent.round, still_for=still_for))
    return agent, order


async def await_question(agent: Agent) -> agent_pb2.CollectEvidence:
    while not (message := await agent.read()).HasField("collect"):
        pass
    return message.collect


async def answer(server: Served, agent: Agent, question: agent_pb2.CollectEvidence) -> None:
    """Say that a signal has stopped the worker."""
    worker = evidence_pb2.RankEvidence(rank=0, pid=7, state=evidence_pb2.PROCESS_STATE_STOPPED)
    await service_grpc.EvidenceServiceStub(server.channel).ReportEvidence(
        service_pb2.ReportEvidenceRequest(
            job_id="job",
            session_id=agent.session_id,
            evidence_id=question.evidence_id,
            workers=[worker],
        ),
        timeout=LIMIT_S,
    )


async def await_hang(server: Served) -> job_pb2.Hang:
    """Return the suspicion once it was examined."""
    async with AsyncClient(f"127.0.0.1:{server.running.port}") as client:
        async with client.watch_job("job") as watch:
            async for seen in watch:
                if seen.job.hang.text:
                    return seen.job.hang
    raise AssertionError("the watch has ended")


async def test_suspicion_is_examined() -> None:
    """And it is over when the worker moves."""
    async with served() as server:
        agent, _ = await stand_still(server)
        question = await await_question(agent)
        assert agent.round == question.round

        await answer(server, agent, question)
        hang = await await_hang(server)
        assert (0, "n1", "a signal has stopped rank 0") == (hang.rank, hang.node_name, hang.text)

        await agent.check_alive()
        await agent.report(progress=agent_pb2.Progress(round=agent.round))
        await agent.check_alive()
        async with AsyncClient(f"127.0.0.1:{server.running.port}") as client:
            assert not (await client.get_job("job")).job.HasField("hang")


async def test_next_coordinator_examines_it(tmp_path: Path) -> None:
    """The first one has died between the suspicion and the evidence."""
    async with served(journal=SqliteJournal.open(tmp_path / "journal")) as server:
        agent, order = await stand_still(server)
        await await_question(agent)
    async with served(journal=SqliteJournal.open(tmp_path / "journal")) as server:
        agent = agent.again(server)
        held = agent_pb2.HeldRound(
            order=order,
            state=node_pb2.NODE_STATE_STARTED,
            workers=[node_pb2.Worker(local_rank=0, pid=7, state=node_pb2.WORKER_STATE_RUNNING)],
            still_for=to_duration(STILL_MS),
        )
        hello = hello_of("job", 1)
        hello.MergeFrom(agent_pb2.Hello(**TERMS, held=held, run=1, resume_token=agent.token))
        hello.ClearField("ready")
        await agent.write(agent_pb2.SessionRequest(hello=hello))
        await answer(server, agent, await await_question(agent))

        assert "a signal has stopped rank 0" == (await await_hang(server)).text
