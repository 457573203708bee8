"""What a job waits for is explained once for all its nodes, and for a moment."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.node import Eligibility
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.rpc.envelopes import Envelopes
from rallypoint.server.rpc.guards.tokens import WorkerTokens
from rallypoint.server.rpc.outbox import Outboxes
from rallypoint.server.rpc.views import explanations
from rallypoint.server.rpc.views.explanations import (
    EXPLAINED_MS,
    NODES_PER_EXPLAINED_MS,
    Explanations,
)
from support.core.coordinator import Bench


def make(nodes: int, wanted: int) -> tuple[Bench, Envelopes]:
    """Return a job that waits for `wanted` nodes, and has `nodes`."""
    bench = Bench(JobSpec(min_nodes=wanted, max_nodes=wanted))
    bench.join(*(f"n{number}" for number in range(nodes)))
    return bench, Envelopes(Outboxes(), bench.state, WorkerTokens("c"))


def test_explanation_is_reused_for_the_other_nodes() -> None:
    """Up to its end, and not at it."""
    bench, envelopes = make(2, 3)
    first, second = bench.state.nodes
    assert envelopes.explained(second, bench.now_ms) is None

    waiting = envelopes.explain(first, bench.now_ms)

    assert waiting is not None
    last_ms = bench.now_ms + EXPLAINED_MS - 1
    assert (bench.now_ms, waiting) == envelopes.explained(second, last_ms)
    assert envelopes.explained(second, last_ms + 1) is None


def test_large_job_is_explained_less_often() -> None:
    """By one ms for so many nodes."""
    bench, envelopes = make(2 * NODES_PER_EXPLAINED_MS, 99)
    session = next(iter(bench.state.nodes))
    envelopes.explain(session, bench.now_ms)

    last_ms = bench.now_ms + EXPLAINED_MS + 1

    assert envelopes.explained(session, last_ms) is not None
    assert envelopes.explained(session, last_ms + 1) is None


def test_node_that_is_set_aside_has_its_own() -> None:
    """Its health may be why it waits, whatever the others wait for."""
    bench, envelopes = make(2, 3)
    first, second = bench.state.nodes
    envelopes.explain(first, bench.now_ms)

    node = bench.state.nodes[second]
    bench.state.nodes[second] = type(node)(
        node.identity,
        node.name,
        arrival=node.arrival,
        connection=1,
        eligibility=Eligibility.QUARANTINED,
    )

    assert envelopes.explained(first, bench.now_ms) is not None
    assert envelopes.explained(second, bench.now_ms) is None
    assert envelopes.explained("unknown", bench.now_ms) is None  # type: ignore[arg-type]


def test_explanations_of_other_jobs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is explained again needs no more room, also when there are as many as can be."""
    monkeypatch.setattr(explanations, "JOBS_MAX", 2)
    known, benches = Explanations(), [make(1, 2)[0], make(1, 2)[0], make(1, 2)[0]]
    jobs = [replace(bench.job(), job_id=JobId(f"{n}")) for n, bench in enumerate(benches)]

    def find() -> list[bool]:
        found = (
            known.find(bench.state, job.job_id, 0) for bench, job in zip(benches, jobs, strict=True)
        )
        return [one is not None for one in found]

    for number in (0, 1, 0):
        known.renew(benches[number].state, jobs[number], 0)
    assert [True, True, False] == find()
    known.renew(benches[2].state, jobs[2], 0)

    assert [False, False, True] == find()
