"""Timelines of rounds: what each mark means, and what becomes of wrong, late and missing ones."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Milestone, Timeline
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.rounds.timelines import find_disorder, find_marks
from rallypoint.server.core.step import Transition
from support.core.coordinator import Bench
from support.core.fake_agents import come_back, worker_exit
from support.core.rounds import pair

IMPORTED, GROUPED = Milestone.IMPORTED, Milestone.PROCESS_GROUP


def say(bench: Bench, step: int, *, ago_ms: int = 0, round: int | None = None) -> Transition:
    """Let a worker report a step."""
    job = bench.job()
    number = job.round_number if round is None else round
    claim = inputs.Claim(job.job_id, job.run, number, "token", is_signed=True)
    return bench.take(inputs.Progressed(claim, step, ago_ms))


def timeline(bench: Bench) -> Timeline:
    """Return the timeline of the current round."""
    round = bench.job().round
    assert round is not None and round.timeline is not None
    return round.timeline


def marks(bench: Bench) -> dict[str, int]:
    """Return the marks of the current round, in ms since their origin."""
    return {name.removesuffix("_ms"): ms for name, ms in find_marks(timeline(bench))}


def test_failure_is_followed_to_the_first_step() -> None:
    """Each mark is the time from the failure, which the agent says was a while ago."""
    bench, a, b = pair()
    bench.advance(10_000)
    a.fail(replace(worker_exit(1, ran_ms=9_000), ago_ms=70))
    bench.advance(200)
    b.exit(replace(worker_exit(None, signal=15, prompted=True), ago_ms=50))
    bench.advance(30)
    a.ready()
    bench.advance(40)
    b.ready()
    bench.advance(500)
    a.start()
    bench.advance(10)
    b.start()
    a.reach(IMPORTED)
    bench.advance(1_000)
    b.reach(IMPORTED, 400)
    b.reach(GROUPED)
    bench.advance(5)
    a.reach(GROUPED)
    bench.advance(20)
    say(bench, 3, ago_ms=4)

    assert {
        "detected": 70,
        "told": 70,
        "stopped": 70 + 150,
        "swept": 340,
        "sealed": 340,
        "started": 850,
        "imported": 850 + 600,
        "process_group": 1_855,
        "first_step": 1_871,
    } == marks(bench)


def test_first_round_counts_from_the_opening_of_the_run() -> None:
    """There is nothing to detect, to stop or to sweep."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    (a,) = bench.join("a")
    bench.advance(3_000)
    (b,) = bench.join("b")
    bench.advance(20)
    a.start()
    b.start()

    assert {"sealed": 3_000, "started": 3_020} == marks(bench)


def test_planned_stop_counts_from_its_decision() -> None:
    """Nothing has failed, so nothing was detected; a failure during the stop does not count."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3))
    bench.run_round("a", "b")
    bench.join("c")
    while bench.job().phase is Phase.RUNNING:
        bench.advance(100)
    bench.advance(60)
    bench.obey()

    assert {"told": 0, "swept": 60, "sealed": 60, "started": 60} == marks(bench)


def test_lost_node_counts_from_its_broken_stream() -> None:
    """The time until it counts as lost is the way to `detected`; its workers' end is not known."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=2, grow=False))
    a, b = bench.run_round("a", "b")
    bench.advance(10_000)
    began_ms = bench.now_ms
    b.break_off()
    while bench.job().phase is Phase.RUNNING:
        bench.advance(10)
    grace_ms = bench.now_ms - began_ms
    a.exit(replace(worker_exit(None, signal=15, prompted=True)))
    bench.advance(100)
    a.ready()
    bench.obey()

    found = marks(bench)
    assert grace_ms == found["detected"] == found["told"] == found["stopped"]
    assert grace_ms + 100 == found["swept"] == found["sealed"]


def test_wait_for_the_culprit_is_between_detected_and_told() -> None:
    """A victim is reported first, and the round runs until the cause is reported."""
    bench, a, b = pair()
    bench.advance(5_000)
    a.fail(worker_exit(1, said="RuntimeError: Connection reset by peer"))
    assert Phase.RUNNING is bench.job().phase
    bench.advance(150)
    b.fail(worker_exit(3))
    bench.obey()

    found = marks(bench)
    assert (0, 150) == (found["detected"], found["told"])


@pytest.mark.parametrize("ago_ms", [0, 10_000_000, 2**53 - 1])
def test_ages_are_clamped(ago_ms: int) -> None:
    """Nothing happened before its round was sealed, whatever agents and workers say."""
    bench, a, b = pair()
    bench.advance(1_000)
    for agent in (a, b):
        agent.reach(IMPORTED, ago_ms)
    say(bench, 1, ago_ms=ago_ms)
    first = timeline(bench)
    assert first.sealed_ms is not None
    at_ms = first.sealed_ms if ago_ms else bench.now_ms
    assert (at_ms, at_ms) == (first.imported_ms, first.first_step_ms)
    a.fail(replace(worker_exit(1, ran_ms=ago_ms), ago_ms=ago_ms))
    bench.obey()

    assert at_ms == timeline(bench).origin_ms
    assert min(ago_ms, 1_000) == marks(bench)["detected"]


def test_step_of_an_old_round_changes_nothing() -> None:
    """A worker that is late belongs to a round that is over."""
    bench, a, _ = pair()
    a.fail()
    bench.obey()
    before = bench.job()
    refusal = say(bench, 9, round=1).refusal

    assert refusal is not None
    assert RefusalKind.OLD_ROUND is refusal.kind
    assert before == bench.job()


def test_one_event_says_that_it_trains() -> None:
    """At the first step of each round, with the marks so far; later steps have none."""
    bench, a, b = pair()
    for step in (1, 2, 3):
        say(bench, step)
    a.fail()
    bench.advance(100)
    bench.obey()
    for agent in (a, b):
        agent.reach(IMPORTED)
    bench.advance(40)
    say(bench, 2)

    events = [event for event in bench.state.events.kept() if event.reason == "round_progressed"]
    assert [1, 2] == [event.round for event in events]
    assert {"round": 2, "took_ms": 140, "detected_ms": 0, "imported_ms": 100} == {
        name: value
        for name, value in events[1].facts
        if name in ("round", "took_ms", "detected_ms", "imported_ms")
    }


def test_history_keeps_the_marks() -> None:
    """Also those of the round that was running when the run ended."""
    bench, a, b = pair()
    a.fail()
    bench.advance(300)
    bench.obey()
    say(bench, 1)
    second = timeline(bench)
    a.succeed()
    b.succeed()

    assert second == bench.job().history[-1].timeline
    assert 2 == len({one.timeline for one in bench.job().history})


def test_marks_survive_a_restart_of_the_coordinator() -> None:
    """Those that were shown do not change, and what agents repeat does not move them."""
    bench, a, b = pair()
    a.fail(replace(worker_exit(1), ago_ms=20))
    bench.advance(100)
    bench.obey()
    for agent in (a, b):
        agent.reach(IMPORTED)
    say(bench, 5)
    before = timeline(bench)

    bench.restart()
    for agent in (a, b):
        come_back(agent)
    assert before == timeline(bench)
    b.reach(IMPORTED)
    say(bench, 6)

    assert before == timeline(bench)


def test_restart_during_the_stop_keeps_the_origin() -> None:
    """The time that the coordinator was away is none of its recovery."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=3), durable=True)
    bench.advance(10_000)  # its first window was over when it died
    a, b = bench.run_round("a", "b")
    bench.advance(1_000)
    exit = worker_exit(1)
    a.fail(replace(exit, ago_ms=20))

    bench.restart()
    bench.advance(3_000 - 1)
    come_back(a, NodeState.UNREADY, (replace(exit, ago_ms=3_020),))
    killed = replace(worker_exit(None, signal=15, prompted=True), ago_ms=2_500)
    come_back(b, NodeState.UNREADY, (killed,))
    bench.obey()

    found = marks(bench)
    assert (20, 20, 520) == (found["detected"], found["told"], found["stopped"])
    assert 3_020 == found["swept"] == found["sealed"]


def test_adopted_round_has_none() -> None:
    """What came before is not known; the round that follows it has a timeline."""
    old, a, b = pair()
    bench = Bench(old.spec, window_ms=2_500, coordinator_id="c2", epoch=5_000)
    for agent in (a, b):
        bench.adopt_agent(agent).hello(held=agent.held_round())
    bench.advance(2_500)
    round = bench.job().round
    assert round is not None
    assert (None, 1) == (round.timeline, round.header.number)
    a.reach(IMPORTED)
    say(bench, 4)
    a.fail()
    bench.obey()

    assert {"detected", "told", "stopped", "swept", "sealed", "started"} == set(marks(bench))


def test_disorder_is_found() -> None:
    """The invariant names the two moments."""
    right = Timeline(5, 6, 7, 6, 8, 9, 10, 9, 11, 12)

    assert None is find_disorder(right)
    assert "told_ms 4, detected_ms 6" == find_disorder(replace(right, told_ms=4))
    assert "stopped_ms 4, origin_ms 5" == find_disorder(replace(right, stopped_ms=4))
    assert "swept_ms 8, stopped_ms 9" == find_disorder(replace(right, stopped_ms=9))
    assert None is find_disorder(Timeline(5))
    assert "first_step_ms 1, sealed_ms 9" == find_disorder(replace(right, first_step_ms=1))
