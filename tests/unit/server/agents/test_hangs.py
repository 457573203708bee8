"""Agents hear with the answers to their heartbeats that their round is suspected to hang."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.agents.envelopes import Envelopes
from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.api.jobs.job import basic_message
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.v1 import job_pb2
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, FakeAgent

STILL_MS = 300_000


class Suspected(Struct):
    """A job with a running round of two nodes, and a spare."""

    bench: Bench
    members: tuple[FakeAgent, ...]
    envelopes: Envelopes
    outbox: Outbox
    """Of a member."""

    @property
    def round(self) -> int:
        return self.bench.rounds()[-1].number

    def stand_still(self, still_ms: int | None = STILL_MS) -> None:
        for agent in self.members:
            agent.report(lambda sender: inputs.Progress(sender, self.round, still_ms))

    def examine(self) -> None:
        self.bench.take(inputs.Examined(JobId(JOB), self.round, 1, "rank 1 is in train.py:7"))

    def answer(self) -> job_pb2.Waiting | None:
        """Return what the answer to the next heartbeat says, asked in a turn if that is needed."""
        self.outbox.heartbeat += 1
        answer = self.envelopes.answer_now(self.outbox, self.bench.now_ms)
        if answer is None:
            waiting = self.envelopes.explain(self.outbox.session, self.bench.now_ms)
            answer = self.envelopes.answer(self.outbox, waiting)
        message = answer.acknowledgement
        assert self.outbox.heartbeat == message.heartbeat
        return message.waiting if message.HasField("waiting") else None


def run() -> Suspected:
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, grow_after_ms=STILL_MS * 4))
    members = bench.run_round("a", "b")
    bench.advance(STILL_MS)
    outbox = Outbox(members[0].session, 1, JobId(JOB), runs_workers=True)
    return Suspected(bench, members, Envelopes(Outboxes(), bench.state, WorkerTokens("c")), outbox)


def test_members_hear_of_a_suspicion_that_was_examined() -> None:
    """Not before, so that each logs it once, and not any more when it is over."""
    job = run()
    assert job.answer() is None

    job.stand_still()
    assert job.answer() is None
    job.envelopes.explain(job.outbox.session, job.bench.now_ms)  # a spare asks

    job.examine()
    waiting = job.answer()
    assert waiting is not None
    assert job_pb2.WAIT_KIND_HANG == waiting.kind
    assert waiting.text.endswith(": rank 1 is in train.py:7 (rank 1 on node b)")

    job.stand_still(None)
    assert job.answer() is None


def test_members_hear_of_no_other_wait() -> None:
    """Such as for a growth, which was explained a moment ago."""
    job = run()
    job.bench.join("c")
    waiting = job.envelopes.explain(job.outbox.session, job.bench.now_ms)
    assert waiting is not None and job_pb2.WAIT_KIND_GROWTH == waiting.kind

    assert job.answer() is None
    assert not job.envelopes.answer(job.outbox, waiting).acknowledgement.HasField("waiting")


def test_job_shows_the_suspicion() -> None:
    """First without evidence; the node is that of the rank."""
    job = run()
    bench = job.bench
    assert not basic_message(bench.state, bench.job(), bench.now_ms).HasField("hang")

    job.stand_still()
    bench.advance(1_000)
    hang = basic_message(bench.state, bench.job(), bench.now_ms).hang
    assert (STILL_MS + 1_000, 1_000) == (
        hang.still_for.ToMilliseconds(),
        hang.suspected_for.ToMilliseconds(),
    )
    assert ("", "", False) == (hang.text, hang.node_name, hang.HasField("rank"))

    job.examine()
    hang = basic_message(bench.state, bench.job(), bench.now_ms).hang
    assert ("rank 1 is in train.py:7", "b", 1) == (hang.text, hang.node_name, hang.rank)
