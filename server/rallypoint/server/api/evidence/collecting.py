"""Collects evidence of one round: asks its agents, takes their reports, and keeps the outcome.

Evidence is no decision: it is in no journal, and moves no round. A coordinator that starts again
has none.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.server.api.evidence.mapping import RANK
from rallypoint.server.core.evidence.folding import fold
from rallypoint.server.core.model.evidence import Evidence, RankEvidence
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.state.state import State
from rallypoint.server.core.verdicts.timeouts import list_timed_out
from rallypoint.server.shell.listeners import Listener
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import evidence_pb2
from rallypoint.wire.durations import to_duration

COLLECT_MS = 2_000
"""How long an agent may collect."""
ANSWER_S_MAX = 2.75
"""How long the coordinator waits for the reports of agents."""
RANK_BYTES_MAX = 65_536 + 1_024
"""Bytes of a whole rank; agents send at most 64 KiB."""
JOB_BYTES_MAX = 16_777_216
"""Bytes that are kept of the ranks of one job; of further ranks only what is compared, and at most
as many bytes again."""
SHORT_FRAMES, SHORT_GROUPS = 8, 8
"""What is kept of a rank for which there is little room."""
ALL_BYTES_MAX = 67_108_864
"""The same of all jobs; the evidence that was taken first is dropped."""
UNASKED = "its agent cannot be asked"

Ask = Callable[[SessionId, agent_pb2.CollectEvidence], bool]
"""Asks an agent; returns whether it can be asked."""


class Member(Struct, frozen=True):
    """A node of the round."""

    session: SessionId
    first_rank: int
    local_world_size: int


class Round(Struct, frozen=True):
    """The round that evidence is about."""

    job_id: JobId
    number: int
    world_size: int
    members: tuple[Member, ...]
    timed_out: frozenset[int] = frozenset()
    """Ranks that have failed because a collective timed out."""


def find_round(state: State, job: Job) -> Round | None:
    """Return the round of a job that has workers; None: there is none."""
    if job.round is None:
        return None
    nodes = (state.nodes[session] for session in state.sessions.get(job.job_id, ()))
    members = tuple(
        Member(node.session, node.assignment.first_rank, node.assignment.local_world_size)
        for node in nodes
        if node.assignment is not None
    )
    if not members:
        return None
    header, timed_out = job.round.header, list_timed_out(job.round)
    return Round(job.job_id, header.number, header.world_size, members, timed_out)


class Taken(Struct, frozen=True):
    """Evidence of a job, as it is kept."""

    evidence: Evidence
    ranks: dict[int, RankEvidence]
    size: int
    """Bytes of the ranks."""
    at_s: float
    """When it was taken, by this process's monotonic clock."""


class _Collection(Struct):
    """Evidence that is being collected."""

    round: Round
    reason: str
    evidence_id: str
    begun_s: float
    members: dict[SessionId, Member]
    waiting: set[SessionId]
    """Members whose reports have not all come."""
    unasked: list[Member] = field(default_factory=list)
    """Members whose agents cannot be asked: they are older, or not connected."""
    ranks: dict[int, RankEvidence] = field(default_factory=dict)
    size: int = 0
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    callers: int = 0
    """Calls that wait for it."""
    taken: Taken | None = None
    """What it came to."""


class Collecting(Listener):
    """The evidence of the jobs of one shard: what is being collected, and what was taken last."""

    def __init__(self, ask: Ask) -> None:
        """Begin without evidence."""
        self._ask = ask
        self._open: dict[JobId, _Collection] = {}
        self._taken: OrderedDict[JobId, Taken] = OrderedDict()
        """The evidence of each job that was taken last, the oldest first."""

    async def take(self, round: Round, reason: str) -> Taken:
        """Collect evidence of a round; a caller who comes meanwhile shares it."""
        collection = self._open.get(round.job_id)
        if collection is None or collection.round.number != round.number:
            collection = self._begin(round, reason)
        collection.callers += 1
        left_s = collection.begun_s + ANSWER_S_MAX - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await collection.is_over.wait()
        except TimeoutError:
            pass  # what has not come is missing
        finally:
            collection.callers -= 1
            if not collection.callers and self._open.get(round.job_id) is collection:
                del self._open[round.job_id]
        if collection.taken is None:
            collection.taken = _finish(collection)
            self._keep(round.job_id, collection.taken)
        return collection.taken

    def _begin(self, round: Round, reason: str) -> _Collection:
        evidence_id = secrets.token_hex(16)
        members = {one.session: one for one in round.members}
        collection = _Collection(
            *(round, reason, evidence_id, time.monotonic(), members, set(members))
        )
        self._open[round.job_id] = collection
        request = agent_pb2.CollectEvidence(
            evidence_id=evidence_id, round=round.number, limit=to_duration(COLLECT_MS)
        )
        for session in members:
            if not self._ask(session, request):
                collection.waiting.discard(session)
                collection.unasked.append(members[session])
        if not collection.waiting:
            collection.is_over.set()
        return collection

    def report(
        self,
        job_id: JobId,
        session: SessionId,
        evidence_id: str,
        workers: Sequence[evidence_pb2.RankEvidence],
        *,
        has_more: bool,
    ) -> None:
        """Take the report of an agent; one that was not asked, or is late, is ignored.

        Args:
            job_id: its job.
            session: its session.
            evidence_id: what it answers.
            workers: its workers.
            has_more: more reports follow.
        """
        collection = self._open.get(job_id)
        if (
            collection is None
            or collection.taken is not None
            or not secrets.compare_digest(collection.evidence_id, evidence_id)
        ):
            return
        member = collection.members.get(session)
        if member is None:
            return
        own = range(member.first_rank, member.first_rank + member.local_world_size)
        for worker in workers:
            if worker.HasField("rank") and worker.rank in own:
                _add(collection, worker)
        if not has_more:
            collection.waiting.discard(session)
            if not collection.waiting:
                collection.is_over.set()

    def _keep(self, job_id: JobId, taken: Taken) -> None:
        self._taken.pop(job_id, None)
        self._taken[job_id] = taken
        size = sum(one.size for one in self._taken.values())
        while size > ALL_BYTES_MAX and len(self._taken) > 1:
            _, dropped = self._taken.popitem(last=False)
            size -= dropped.size

    def latest(self, job_id: JobId) -> Taken | None:
        """Return the evidence of a job that was taken last."""
        return self._taken.get(job_id)

    def note_job(self, job_id: JobId, state: State) -> None:
        """Drop the evidence of a job that is gone."""
        if job_id in self._taken and job_id not in state.jobs:
            del self._taken[job_id]

    def end(self) -> None:
        """End all waits: what has come by now counts."""
        for collection in self._open.values():
            collection.is_over.set()


def _add(collection: _Collection, worker: evidence_pb2.RankEvidence) -> None:
    """Add what a worker does: whole, in short, or not at all, as far as there is room."""
    size = worker.ByteSize()
    if size > RANK_BYTES_MAX or collection.size + size > JOB_BYTES_MAX:
        worker = _shorten(worker)
        size = worker.ByteSize()
    if collection.size + size <= 2 * JOB_BYTES_MAX and worker.rank not in collection.ranks:
        collection.size += size
        collection.ranks[worker.rank] = RANK.to_struct(worker)


def _shorten(worker: evidence_pb2.RankEvidence) -> evidence_pb2.RankEvidence:
    """Return what of a worker is compared with the others, as far as it is of a usual size."""
    short = evidence_pb2.RankEvidence(
        rank=worker.rank,
        pid=worker.pid,
        state=worker.state,
        gaps=[*worker.gaps[:4], "not all: the evidence of the job is too large"],
        awaits_peer=worker.awaits_peer,
    )
    for thread in worker.threads[:1]:
        short.threads.add(is_main=thread.is_main, frames=thread.frames[:SHORT_FRAMES])
    for group in worker.groups[:SHORT_GROUPS]:
        short.groups.add().CopyFrom(group)
        del short.groups[-1].latest[1:], short.groups[-1].members[SHORT_FRAMES:]
    return short


def _finish(collection: _Collection) -> Taken:
    """Compare what has come."""
    now_s, round = time.monotonic(), collection.round
    unknown = {
        rank: RankEvidence(rank, gaps=(UNASKED,))
        for one in collection.unasked
        for rank in range(one.first_rank, one.first_rank + one.local_world_size)
    }
    evidence = fold(
        collection.ranks | unknown,
        round=round.number,
        reason=collection.reason,
        took_ms=int((now_s - collection.begun_s) * 1000),
        timed_out=round.timed_out,
        world_size=round.world_size,
    )
    evidence = replace(evidence, answered=len(collection.ranks))
    return Taken(evidence, collection.ranks, collection.size, now_s)
