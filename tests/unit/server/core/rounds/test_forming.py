"""When a forming round is sealed, and when it is given up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.job import Job, WaitKind
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.rounds.waits import GiveUp, Seal, Wait, decide_forming
from rallypoint.server.core.state.tally import Tally
from support.core.coordinator import Bench
from support.core.fake_agents import finished

SPEC = JobSpec(min_nodes=2, max_nodes=4, join_timeout_ms=60_000)
FIRST = Job(
    Bench().agent("a").identity.job_id,
    run=1,
    spec=SPEC,
    opened_ms=0,
    forming_since_ms=1_000,
    first_ready_ms=10_000,
    last_arrival_ms=12_000,
)
AGAIN = replace(FIRST, next_reason=RoundReason.WORKER_FAILED)
PAUSED = replace(AGAIN, backoff_until_ms=20_000)


@pytest.mark.parametrize(
    ("claim", "job", "eligible", "away", "now_ms", "expected"),
    [
        ("max_nodes seal at once", FIRST, 4, 0, 12_000, Seal()),
        ("more than max_nodes too", FIRST, 5, 0, 12_000, Seal()),
        ("one fewer waits", FIRST, 3, 0, 12_000, Wait(WaitKind.LAST_CALL, 17_000)),
        ("max_nodes wait for no node", FIRST, 4, 1, 12_000, Seal()),
        (
            "fewer wait for nodes that may return",
            FIRST,
            3,
            1,
            30_000,
            Wait(WaitKind.RETURNING, None),
        ),
        ("too few wait for them too", FIRST, 1, 1, 99_000, Wait(WaitKind.RETURNING, None)),
        ("1 ms before the last call ends", FIRST, 2, 0, 16_999, Wait(WaitKind.LAST_CALL, 17_000)),
        ("the last call ends", FIRST, 2, 0, 17_000, Seal()),
        ("too few hear no last call", FIRST, 1, 0, 17_000, Wait(WaitKind.NODES, 61_000)),
        ("1 ms before the join timeout", FIRST, 1, 0, 60_999, Wait(WaitKind.NODES, 61_000)),
        ("the join timeout", FIRST, 1, 0, 61_000, GiveUp()),
        ("enough at the join timeout", FIRST, 2, 0, 61_000, Seal()),
        ("no last call after a failure", AGAIN, 2, 0, 12_000, Seal()),
        ("too few after a failure", AGAIN, 1, 0, 12_000, Wait(WaitKind.NODES, 61_000)),
        ("returners after a failure", AGAIN, 2, 1, 12_000, Wait(WaitKind.RETURNING, None)),
        ("1 ms before the pause ends", PAUSED, 4, 0, 19_999, Wait(WaitKind.BACKOFF, 20_000)),
        ("the pause ends", PAUSED, 4, 0, 20_000, Seal()),
    ],
)
def test_forming_policy(
    claim: str,
    job: Job,
    eligible: int,
    away: int,
    now_ms: int,
    expected: Seal | Wait | GiveUp,
) -> None:
    """The policy of a forming round, row by row."""
    tally = Tally(nodes=eligible + away, away=away, eligible=eligible)

    assert expected == decide_forming(job, tally, now_ms), claim


def test_single_node_starts_at_once() -> None:
    """A job of one node waits for nothing."""
    bench = Bench(JobSpec())

    (node,) = bench.join("a")

    assert (Phase.RUNNING, 0) == (bench.job().phase, node.group_rank)
    assert bench.rounds()[0].reason is RoundReason.FIRST


def test_every_arrival_renews_the_last_call() -> None:
    """The last call ends 5 s after the latest arrival, not 5 s after the first."""
    bench = Bench(SPEC)
    bench.join("a", "b")
    bench.advance(4_000)
    bench.join("c")

    bench.advance(4_999)
    assert Phase.FORMING is bench.job().phase

    bench.advance(1)
    assert ["a", "b", "c"] == bench.order()


def test_last_call_ends_after_thirty_seconds() -> None:
    """However often a node arrives, the last call ends 30 s after min_nodes were ready."""
    bench = Bench(replace(SPEC, max_nodes=99))
    bench.advance(1_000)
    bench.join("n0", "n1")
    for number in range(2, 9):
        bench.advance(4_000)
        bench.join(f"n{number}")
    assert 29_000 == bench.now_ms

    bench.advance(1_999)
    assert Phase.FORMING is bench.job().phase

    bench.advance(1)
    assert 9 == len(bench.order())


def test_last_call_begins_anew_after_too_few() -> None:
    """After a fall below min_nodes, the last call starts again with the next sufficient set."""
    bench = Bench(SPEC)
    _, leaver = bench.join("a", "b")
    bench.advance(4_000)
    leaver.goodbye()
    bench.advance(40_000)
    bench.join("c")

    bench.advance(4_999)
    assert Phase.FORMING is bench.job().phase

    bench.advance(1)
    assert ["a", "c"] == bench.order()


def test_max_nodes_end_the_last_call() -> None:
    """The node that completes max_nodes seals the round in the same step."""
    bench = Bench(SPEC)
    bench.join("a", "b", "c")
    assert Phase.FORMING is bench.job().phase

    bench.join("d")

    assert ["a", "b", "c", "d"] == bench.order()


def test_node_with_a_broken_stream_is_not_sealed_in() -> None:
    """A round is not sealed with a node whose stream is broken, nor before its grace is over."""
    bench = Bench(SPEC)
    _, _, gone = bench.join("a", "b", "c")
    bench.advance(4_800)
    gone.break_off()

    bench.advance(499)
    assert Phase.FORMING is bench.job().phase

    bench.advance(1)
    assert ["a", "b"] == bench.order()


def test_unready_node_does_not_count() -> None:
    """A node on which another coordinator's round still runs counts only when it is Ready."""
    late, _ = Bench(SPEC).run_round("b", "c")
    bench = Bench(SPEC)
    bench.join("a")
    bench.adopt_agent(late).hello(held=late.held_round())
    assert (Phase.FORMING, NodeState.UNREADY) == (bench.job().phase, late.known_node.state)

    late.obey()

    assert WaitKind.LAST_CALL is bench.the_wait().kind


def test_join_timeout_fails_the_run() -> None:
    """With too few nodes for the join timeout the run fails, and names the lost nodes."""
    bench = Bench(SPEC)
    stayer, leaver = bench.join("a", "b")
    leaver.goodbye()

    bench.advance(59_999)
    assert Phase.FORMING is bench.job().phase

    bench.advance(1)
    end = finished(stayer)
    assert end.verdict is not None
    assert (
        Outcome.FAILED,
        VerdictCause.TOO_FEW_NODES,
        Consequence.ENDED,
        "only 1 node was ready after 60 s; 2 are required (--nnodes); lost before: b",
    ) == (end.outcome, end.verdict.cause, end.verdict.consequence, end.verdict.text)


def test_join_timeout_counts_anew_after_a_round() -> None:
    """The join timeout of a later round counts from the end of the round before."""
    bench = Bench(SPEC)
    stayer, gone = bench.run_round("a", "b")
    bench.advance(50_000)
    gone.break_off()
    bench.advance(500)
    bench.obey()

    bench.advance(59_999)
    assert Phase.FORMING is bench.job().phase

    bench.advance(1)
    assert Outcome.FAILED is finished(stayer).outcome


def test_survivors_wait_for_a_replacement() -> None:
    """Too few survivors wait, and start as soon as another node comes."""
    bench = Bench(SPEC)
    stayer, gone = bench.run_round("a", "b")
    gone.goodbye()
    bench.obey()
    bench.advance(30_000)
    assert Phase.FORMING is bench.job().phase

    bench.join("c")

    assert (["a", "c"], 0) == (bench.order(), stayer.group_rank)
