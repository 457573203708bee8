"""How a job explains what it waits for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.barrier import Expected
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.reads.explain import NAMED_MAX, AwaitedState
from support.core.barriers import Meeting, node, rank
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, FakeAgent

SPEC = JobSpec(min_nodes=2, max_nodes=3, max_restarts=9, join_timeout_ms=60_000)


def forming(*names: str) -> Bench:
    bench = Bench(SPEC)
    bench.join(*names)
    return bench


def running(spec: JobSpec = SPEC) -> tuple[Bench, FakeAgent, FakeAgent]:
    bench = Bench(spec)
    a, b = bench.run_round("a", "b")
    return bench, a, b


def in_window() -> Bench:
    bench = Bench(SPEC, window_ms=2_500)
    bench.join("a")
    bench.advance(500)
    return bench


def too_few() -> Bench:
    bench = forming("a")
    bench.advance(20_000)
    return bench


def too_few_and_one_lost() -> Bench:
    bench, _, b = running()
    b.break_off()
    bench.advance(500)
    bench.obey()
    bench.advance(12_000)
    return bench


def too_few_and_one_left() -> Bench:
    bench, _, b = running()
    b.goodbye()
    bench.obey()
    return bench


def last_call() -> Bench:
    bench = forming("a", "b")
    bench.advance(1_000)
    return bench


def returning() -> Bench:
    bench = Bench(SPEC)
    _, b = bench.join("a", "b")
    b.break_off()
    return bench


def backoff() -> Bench:
    bench, a, _ = running()
    for _ in range(3):
        a.fail()
        bench.obey()
    bench.advance(250)
    return bench


def starting() -> Bench:
    bench = Bench(SPEC)
    a, _, _ = bench.join("a", "b", "c")
    bench.advance(10_000)
    a.start()
    return bench


def stopping() -> Bench:
    bench, a, b = running()
    a.fail()
    a.obey()
    b.break_off()
    bench.advance(100)
    return bench


def stopping_with_one_blocked() -> Bench:
    bench, a, b = running()
    a.fail()
    bench.obey(b)
    a.block()
    return bench


def stopping_with_a_silent_helper() -> Bench:
    bench, a, b = running()
    a.fail()
    bench.obey(b)
    a.block("its helper process 7 does not answer")
    return bench


def growing() -> Bench:
    bench, *_ = running()
    bench.advance(60_000)
    bench.join("c")
    return bench


def farewell() -> Bench:
    bench, a, b = running()
    a.succeed()
    b.succeed()
    a.goodbye()
    assert Outcome.SUCCEEDED is bench.job().outcome
    return bench


@pytest.mark.parametrize(
    ("make", "kind", "ready", "needed", "left_ms", "text"),
    [
        (
            in_window,
            WaitKind.REATTACH,
            1,
            2,
            2_000,
            "the coordinator has just started and waits for agents of running rounds; "
            "at most 2.0 s more",
        ),
        (
            too_few,
            WaitKind.NODES,
            1,
            2,
            40_000,
            "1 of 2 required nodes are ready; at most 40.0 s more",
        ),
        (
            too_few_and_one_lost,
            WaitKind.NODES,
            1,
            2,
            48_000,
            "1 of 2 required nodes are ready; waiting for b (lost 12 s ago); at most 48.0 s more",
        ),
        (
            too_few_and_one_left,
            WaitKind.NODES,
            1,
            2,
            60_000,
            "1 of 2 required nodes are ready; waiting for b (left 0 s ago); at most 1m more",
        ),
        (
            last_call,
            WaitKind.LAST_CALL,
            2,
            3,
            4_000,
            "2 of up to 3 nodes are ready; at most 4.0 s more",
        ),
        (
            returning,
            WaitKind.RETURNING,
            1,
            2,
            None,
            "members whose connection broke may still reconnect; "
            "waiting for b (disconnected 0 s ago)",
        ),
        (
            backoff,
            WaitKind.BACKOFF,
            2,
            2,
            747,
            "a pause before restart 3 of 9; at most 0.7 s more",
        ),
        (
            starting,
            WaitKind.START,
            1,
            2,
            20_000,
            "2 of 3 nodes still to start; waiting for b (not started), c (not started); "
            "at most 20.0 s more",
        ),
        (
            stopping,
            WaitKind.STOP,
            1,
            1,
            34_900,
            "1 of 2 nodes still to stop; waiting for b (disconnected 0 s ago); at most 34.9 s more",
        ),
        (
            stopping_with_one_blocked,
            WaitKind.NODES,
            1,
            2,
            60_000,
            "1 of 2 required nodes are ready; "
            "waiting for a (blocked by processes that survived SIGKILL); at most 1m more",
        ),
        (
            stopping_with_a_silent_helper,
            WaitKind.STOP,
            1,
            1,
            35_000,
            "1 of 2 nodes still to stop; "
            "waiting for a (its helper process 7 does not answer); at most 35.0 s more",
        ),
        (
            growing,
            WaitKind.GROWTH,
            1,
            0,
            5_000,
            "1 new node to be included in the next round; at most 5.0 s more",
        ),
        (
            farewell,
            WaitKind.FAREWELL,
            0,
            1,
            None,
            "the run has ended; 1 node still attached",
        ),
    ],
)
def test_every_wait_explains_itself(
    make: object, kind: WaitKind, ready: int, needed: int, left_ms: int | None, text: str
) -> None:
    """A wait names its kind, the nodes that are ready and missing, and the time that is left."""
    assert callable(make)
    bench = make()
    assert isinstance(bench, Bench)

    waiting = bench.the_wait()

    assert (kind, ready, needed, left_ms, text) == (
        waiting.kind,
        waiting.ready_nodes,
        waiting.needed_nodes,
        waiting.left_ms,
        waiting.text,
    )


def test_running_job_waits_for_nothing() -> None:
    """A job whose round runs and an ended job without nodes wait for nothing."""
    bench, a, b = running()
    assert bench.wait() is None

    a.succeed()
    b.succeed()
    a.goodbye()
    b.goodbye()

    assert bench.wait() is None


@pytest.mark.parametrize("ms", [600, 2_000, 4_900])
def test_silent_nodes_are_explained_for_their_whole_lease(ms: int) -> None:
    """Before a drain, and however long ago the connections broke."""
    bench, agents = crowd(8)
    drain = inputs.DrainNode(JobId(JOB), NodeName("n7"), 60_000, "kernel update")
    assert bench.take(drain).refusal is None
    for agent in agents[:6]:
        agent.break_off()
    bench.advance(ms)
    waiting = bench.the_wait()

    assert (WaitKind.NETWORK_SUSPECTED, 2, 8, 6, 5_000 - ms) == (
        waiting.kind,
        waiting.ready_nodes,
        waiting.needed_nodes,
        waiting.silent,
        waiting.left_ms,
    )
    assert waiting.text.startswith("6 of 8 nodes are silent: many connections broke at once")
    assert (
        f"; waiting for n0, n1, n2 and 3 more (disconnected {ms / 1000:.0f} s ago)" in waiting.text
    )


@pytest.mark.parametrize(
    ("mute", "kind"), [(1, WaitKind.RETURNING), (8, WaitKind.NETWORK_SUSPECTED)]
)
def test_node_whose_connection_says_nothing_is_silent(mute: int, kind: WaitKind) -> None:
    """A switch that drops packets breaks no connection: three heartbeats are missing."""
    bench, agents = crowd(8)
    for agent in agents[:mute]:
        agent.beats = False
    bench.advance(2_000)
    assert bench.wait() is None
    bench.advance(2_000)
    waiting = bench.the_wait()

    assert (kind, mute) == (waiting.kind, waiting.silent)
    assert {AwaitedState.SILENT} == {one.state for one in waiting.awaited}


def test_nodes_that_were_lost_together_are_named_together() -> None:
    """A few of them, and how many more there are, also beyond those that the job remembers."""
    bench, agents = crowd(40)
    for agent in agents[:39]:
        agent.break_off()
    bench.advance(30_000)
    bench.obey()
    text = bench.the_wait().text

    assert "and 36 more (lost 30 s ago)" in text, text


def crowd(nodes: int) -> tuple[Bench, tuple[FakeAgent, ...]]:
    """Return a job whose round runs on so many nodes."""
    bench = Bench(JobSpec(min_nodes=nodes, max_nodes=nodes))
    return bench, bench.run_round(*(f"n{number}" for number in range(nodes)))


def at_barrier(bench: Bench, *ranks: int, name: str = "b", **facts: Any) -> Bench:
    meeting = Meeting(bench, name)
    for number in ranks:
        assert meeting.arrive(rank(number), **facts) is None
    return bench


@pytest.mark.parametrize(
    ("ranks", "facts", "text", "nodes"),
    [
        ((0,), {}, "rank 0 has waited 18 s at barrier b for rank 1 on b", ["b"]),
        ((1,), {}, "rank 1 has waited 18 s at barrier b for rank 0 on a", ["a"]),
        (
            (0, 1),
            {"expected": Expected(3)},
            "ranks 0, 1 have waited 18 s at barrier b for 1 more",
            [],
        ),
        (
            (0,),
            {"expected": Expected(2, (rank(0), node("b")))},
            "rank 0 has waited 18 s at barrier b for node b",
            ["b"],
        ),
    ],
)
def test_open_barrier_is_explained(
    ranks: tuple[int, ...], facts: dict[str, Any], text: str, nodes: list[str]
) -> None:
    """Who waits there, for whom, on which node, and when the barrier fails."""
    bench, *_ = running()
    at_barrier(bench, *ranks, **facts)
    bench.advance(18_000)
    waiting = bench.the_wait()

    assert (WaitKind.BARRIER, 42_000) == (waiting.kind, waiting.left_ms)
    assert f"{text}; at most 42.0 s more" == waiting.text
    assert nodes == [one.name for one in waiting.awaited]


def test_missing_ranks_of_a_large_barrier_are_counted() -> None:
    """A sentence names a few of them; the nodes of the first are named too."""
    names = [f"n{number:02}" for number in range(20)]
    bench = Bench(JobSpec(min_nodes=20, max_nodes=20))
    for name in names:
        bench.join(name, workers=8)
    bench.obey()
    at_barrier(bench, *range(100))
    bench.advance(2_000)
    waiting = bench.the_wait()

    assert waiting.text.startswith(
        "100 of 160 ranks have waited 2 s at barrier b for "
        "ranks 100, 101, 102, 103, 104, 105, 106, 107 and 52 more; "
    )
    assert (100, 60) == (waiting.ready_nodes, waiting.needed_nodes)
    assert names[12:] == [one.name for one in waiting.awaited]


def test_the_oldest_barrier_is_named_first() -> None:
    """The others are counted; one at which workers have just come is none to explain."""
    bench, *_ = running()
    at_barrier(bench, 0, name="later")
    bench.advance(900)
    assert bench.wait() is None
    bench.advance(600)
    at_barrier(bench, 0, name="earlier")
    bench.advance(2_000)

    assert bench.the_wait().text.startswith(
        "rank 0 has waited 3 s at barrier later for rank 1 on b, and others at 1 more barrier; "
    )


def test_barrier_is_named_beside_a_growth() -> None:
    """And beside a drain: either would hide why the training stands still."""
    bench = growing()
    at_barrier(bench, 0)
    bench.advance(2_000)

    assert (
        "1 new node to be included in the next round; "
        "rank 0 has waited 2 s at barrier b for rank 1 on b; at most 3.0 s more"
    ) == bench.the_wait().text


def test_node_that_came_back_is_not_missed() -> None:
    """A node that was lost and came back is not named."""
    bench = Bench(replace(SPEC, min_nodes=3))
    a, b = bench.join("a", "b")
    b.goodbye()
    bench.join("b")
    a.goodbye()

    assert ["a"] == [awaited.name for awaited in bench.the_wait().awaited]


def test_explanation_has_a_limit() -> None:
    """An explanation names a limited number of nodes, however many are awaited."""
    names = [f"n{n}" for n in range(NAMED_MAX + 4)]
    bench = Bench(JobSpec(min_nodes=len(names), max_nodes=len(names)))
    bench.join(*names)

    waiting = bench.the_wait()

    assert (WaitKind.START, len(names), NAMED_MAX) == (
        waiting.kind,
        waiting.needed_nodes,
        len(waiting.awaited),
    )


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ((0, 2), "; missing --node-rank 1, 3"),
        ((3, 1, 0), "; missing --node-rank 2"),
        ((0, None), ""),
        ((None, None), ""),
        ((5,), "; missing --node-rank 0, 1, 2, 3"),
    ],
)
def test_places_that_nobody_has_come_for(ranks: tuple[int | None, ...], named: str) -> None:
    """Where every node has an explicit rank, the missing ranks are named."""
    bench = Bench(replace(SPEC, min_nodes=4, max_nodes=6))
    for number, node_rank in enumerate(ranks):
        bench.join(f"n{number}", node_rank=node_rank)
    waiting = bench.wait()

    assert waiting is not None
    assert waiting.text == f"{len(ranks)} of 4 required nodes are ready{named}; at most 1m more"


EVIDENCE = "rank 1 has not entered all_reduce number 6 of the default group, in which 1 rank waits"


@pytest.mark.parametrize(
    ("examined", "text"),
    [
        ((), "no worker has made progress for 5m12s; evidence is being taken"),
        (
            (1, EVIDENCE),
            f"no worker has made progress for 5m12s: {EVIDENCE} (rank 1 on node b)",
        ),
        (
            (None, "no rank has answered"),
            "no worker has made progress for 5m12s: no rank has answered",
        ),
    ],
)
def test_suspicion_comes_first(examined: tuple[Any, ...], text: str) -> None:
    """Whatever else the round waits for: here for a silent node, and to grow."""
    bench, *agents = running(replace(SPEC, grow_after_ms=600_000))
    bench.join("c")
    bench.advance(300_000)
    stand_still(bench, *agents)
    agents[1].beats = False
    bench.advance(4_000)
    if examined:
        bench.take(inputs.Examined(JobId(JOB), bench.rounds()[-1].number, *examined))
    bench.now_ms += 8_000
    waiting = bench.the_wait()

    assert (WaitKind.HANG, text, None) == (waiting.kind, waiting.text, waiting.left_ms)


def stand_still(bench: Bench, *agents: FakeAgent) -> None:
    number = bench.rounds()[-1].number
    for agent in agents:
        agent.report(lambda sender: inputs.Progress(sender, number, 300_000))
