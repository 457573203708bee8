"""A quarantine yields when min_nodes needs the node; a cordon never does."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import JobChanged
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import DesiredStandby
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import NodeHealth, WaitKind
from rallypoint.server.core.model.node import Eligibility
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import NO_CHANGES
from rallypoint.server.core.state.tally import Tally
from rallypoint.server.core.verdicts.health import choose_candidates
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, finished
from support.core.health import (
    COOLDOWN_MS,
    SPEC,
    WIDE,
    cordon,
    fail_again,
    health,
    lose,
    uncordon,
    with_spare,
)

# --- Never below min_nodes ------------------------------------------------------------------------


def test_quarantine_never_blocks_a_job_without_a_spare() -> None:
    """A quarantined node stays in its slot when fewer than min_nodes would be left."""
    bench = Bench(SPEC)
    a, b = bench.run_round("a", "b")

    fail_again(bench, a, 3)

    assert (Eligibility.QUARANTINED, ["a", "b"]) == (a.known_node.eligibility, bench.order())
    assert Phase.RUNNING is bench.job().phase
    assert (0, 1) == (a.group_rank, b.group_rank)


def test_a_node_that_is_used_in_quarantine_can_earn_another() -> None:
    """Its failures count like any others, and a new spare takes its slot."""
    bench = Bench(SPEC)
    a, _ = bench.run_round("a", "b")
    fail_again(bench, a, 5)
    (c,) = bench.join("c")

    fail_again(bench, a, 1)

    assert 2 == health(bench, "a").quarantines
    assert (["c", "b"], 0) == (bench.order(), c.group_rank)


def test_those_whose_quarantine_ends_first_are_used_first() -> None:
    """The job uses as many quarantined nodes as it lacks, earliest end of quarantine first."""
    bench = Bench(replace(SPEC, min_nodes=3, max_nodes=3, quarantine_after=1))
    a, b, c = bench.run_round("a", "b", "c")
    fail_again(bench, b, 1)
    bench.advance(1_000)
    fail_again(bench, a, 1)
    nodes = [agent.known_node for agent in (a, b, c)]
    job = bench.job()

    def chosen(min_nodes: int) -> list[str]:
        asked = replace(job, spec=replace(job.spec, min_nodes=min_nodes))
        clean = [replace(node, state=a.known_node.state.READY) for node in nodes]
        return [str(node.name) for node in choose_candidates(asked, clean)]

    assert ["c"] == chosen(1)
    assert ["b", "c"] == chosen(2)
    assert ["a", "b", "c"] == chosen(3)


def test_quarantine_is_not_used_where_there_are_enough() -> None:
    """With min_nodes without it, the round is smaller and leaves the quarantined node out."""
    bench = Bench(replace(WIDE, min_nodes=2))
    _, b, _ = bench.run_round("a", "b", "c")

    fail_again(bench, b, 3)

    assert ["a", "c"] == bench.order()
    assert DesiredStandby(spare=True) == b.desired


def test_first_round_gives_others_time_to_come() -> None:
    """A later run counts a quarantined node for min_nodes, and waits the last call for another."""
    bench = Bench(replace(SPEC, max_restarts=2))
    a, b = bench.run_round("a", "b")
    fail_again(bench, a, 2)
    a.fail()
    bench.obey()
    assert Phase.CLOSED is bench.job().phase
    for agent in (a, b):
        agent.goodbye()
    again = bench.join("a", "b")

    assert (2, Eligibility.QUARANTINED) == (bench.job().run, again[0].known_node.eligibility)
    assert WaitKind.LAST_CALL is bench.the_wait().kind
    assert bench.now_ms == bench.job().first_ready_ms
    (c,) = bench.join("c")
    bench.obey()
    assert ["b", "c"] == bench.order()
    assert DesiredStandby(spare=True) == again[0].desired
    assert c.group_rank == 1


@pytest.mark.parametrize(
    ("eligible", "reserve", "min_nodes", "expected"),
    [(0, 0, 2, 0), (1, 0, 2, 1), (1, 1, 2, 2), (1, 3, 2, 2), (0, 1, 2, 1), (3, 2, 2, 3)],
)
def test_reserve_fills_up_to_min_nodes(
    eligible: int, reserve: int, min_nodes: int, expected: int
) -> None:
    """A round can use every eligible node and as many quarantined ones as it lacks."""
    assert expected == Tally(eligible=eligible, reserve=reserve).placeable(min_nodes)


def test_wait_for_nodes_names_the_quarantined() -> None:
    """Quarantined nodes count towards min_nodes; the wait names them and their time left."""
    bench = Bench(replace(SPEC, min_nodes=3, max_nodes=3))
    a, b, _ = bench.run_round("a", "b", "c")
    fail_again(bench, a, 3)
    b.goodbye()
    bench.advance(2_000)
    bench.obey()

    waiting = bench.the_wait()
    assert (WaitKind.NODES, 2, 3) == (waiting.kind, waiting.ready_nodes, waiting.needed_nodes)
    assert [("b", "left"), ("a", "quarantined, 18 s left")] == [
        (node.name, node.text) for node in waiting.awaited
    ]
    assert "2 of 3 required nodes are ready; kept out: a (quarantined, 18 s left); waiting" in (
        waiting.text
    )
    bench.advance(SPEC.join_timeout_ms)
    verdict = finished(a).verdict
    assert verdict is not None
    assert verdict.text.startswith("only 2 nodes were ready after")


@pytest.mark.parametrize(("is_there", "phase"), [(True, Phase.STOPPING), (False, Phase.RUNNING)])
def test_a_quarantined_node_may_follow_one_that_drains(is_there: bool, phase: Phase) -> None:
    """A quarantined node can replace one that drains, so the round need not wait."""
    bench = Bench(replace(SPEC, max_nodes=3, quarantine_after=1))
    a, _, _ = bench.run_round("a", "b", "c")
    bench.join("d")
    fail_again(bench, a, 1)
    assert ["d", "b", "c"] == bench.order()
    if not is_there:
        a.goodbye()
    for name, time_ms in (("b", 1_000), ("c", 5_000)):
        bench.take(inputs.DrainNode(JobId(JOB), NodeName(name), time_ms, "maintenance"))

    bench.advance(1_000)

    assert phase is bench.job().phase


# --- Cordons --------------------------------------------------------------------------------------


def test_cordon_leaves_the_running_round_alone() -> None:
    """Workers on a cordoned node keep running; the next round excludes the node."""
    bench, a, b, c = with_spare()
    messages = len(a.told)

    cordon(bench, "a")
    bench.advance(60_000)
    assert (Phase.RUNNING, messages, 0) == (bench.job().phase, len(a.told), a.group_rank)

    b.fail()
    bench.obey()
    assert (["c", "b"], DesiredStandby(spare=True)) == (bench.order(), a.desired)
    assert c.group_rank == 0


@pytest.mark.parametrize(("newcomers", "expected"), [(("d", "e"), 1), (("d", "e", "f"), 2)])
def test_growth_counts_without_cordoned_members(newcomers: tuple[str, ...], expected: int) -> None:
    """A round stops to grow only if the next one is larger without its cordoned members."""
    bench = Bench(replace(SPEC, max_nodes=4, grow=True))
    bench.run_round("a", "b")
    for name in ("a", "b"):
        cordon(bench, name)
    bench.join(*newcomers)

    bench.advance(60_000)
    bench.obey()

    assert (Phase.RUNNING, expected) == (bench.job().phase, len(bench.rounds()))


def test_cordon_holds_below_min_nodes_too() -> None:
    """A job with too few nodes besides the cordoned one waits, says why, and gives up in time."""
    bench = Bench(SPEC)
    a, b = bench.run_round("a", "b")
    cordon(bench, "a", "bad disk")
    b.fail()
    bench.obey()

    waiting = bench.the_wait()
    assert (WaitKind.NODES, 1, 2) == (waiting.kind, waiting.ready_nodes, waiting.needed_nodes)
    assert [("a", "cordoned: bad disk")] == [(node.name, node.text) for node in waiting.awaited]
    assert "1 of 2 required nodes are ready; kept out: a (cordoned: bad disk); at" in waiting.text
    bench.advance(SPEC.join_timeout_ms)
    assert Outcome.FAILED is finished(a).outcome
    verdict = finished(b).verdict
    assert verdict is not None
    assert verdict.text.endswith("ready after 600 s; 2 are required (--nnodes); cordoned: a")


def test_cordon_is_for_a_name() -> None:
    """An absent node can be cordoned; an agent that joins under the name is cordoned."""
    bench = Bench(WIDE)
    bench.run_round("a", "b")
    cordon(bench, "d")

    (d,) = bench.join("d")
    bench.advance(60_000)
    assert (Eligibility.CORDONED, DesiredStandby(spare=True)) == (
        d.known_node.eligibility,
        d.desired,
    )
    assert (["a", "b"], None) == (bench.order(), bench.wait())

    bench.join("e")
    assert WaitKind.GROWTH is bench.the_wait().kind
    bench.advance(WIDE.settle_time_ms)
    bench.obey()
    assert ["a", "b", "e"] == bench.order()


def test_cordon_outlives_the_agent() -> None:
    """The next agent of the name is cordoned too; one of another name is not."""
    bench, a, _, c = with_spare()
    cordon(bench, "a")
    lose(bench, a)
    bench.obey()
    again, other = bench.join("a", "e")

    assert (Eligibility.CORDONED, Eligibility.ELIGIBLE) == (
        again.known_node.eligibility,
        other.known_node.eligibility,
    )
    lose(bench, c)
    bench.obey()
    assert ["e", "b"] == bench.order()


def test_uncordon_forgets_everything() -> None:
    """Cordon, quarantine and failures are forgotten; the node counts as a new arrival."""
    bench = Bench(WIDE)
    _, b, _ = bench.run_round("a", "b", "c")
    fail_again(bench, b, 3)
    cordon(bench, "b")
    bench.advance(1_000)
    assert (True, 1) == (health(bench, "b").cordoned, health(bench, "b").quarantines)

    uncordon(bench, "b")

    assert (NodeHealth(NodeName("b")), Eligibility.ELIGIBLE) == (
        health(bench, "b"),
        b.known_node.eligibility,
    )
    assert bench.state.deadlines.get((DeadlineKind.QUARANTINE_END, JOB)) is None
    assert (WaitKind.GROWTH, 10_000 - 1_000) == (bench.the_wait().kind, bench.the_wait().left_ms)
    bench.advance(10_000)
    bench.obey()
    assert ["a", "c", "b"] == bench.order()


def test_an_uncordoned_node_renews_the_settle_time() -> None:
    """It is collected together with other new arrivals."""
    bench = Bench(WIDE)
    bench.run_round("a", "b")
    cordon(bench, "c")
    bench.join("c")
    bench.advance(60_000)
    bench.join("d")
    bench.advance(WIDE.settle_time_ms - 1)

    uncordon(bench, "c")
    bench.advance(WIDE.settle_time_ms - 1)
    assert Phase.RUNNING is bench.job().phase
    bench.advance(1)
    bench.obey()

    assert ["a", "b", "c", "d"] == bench.order()


def test_uncordon_of_a_sound_node_changes_nothing() -> None:
    """An unknown name and a healthy node have nothing to forget."""
    bench, *_ = with_spare()

    for name in ("a", "unknown"):
        transition = uncordon(bench, name)
        assert (None, True, ()) == (
            transition.refusal,
            transition.delta == NO_CHANGES,
            transition.records,
        )


def test_cooldown_does_not_lift_a_cordon() -> None:
    """A cordon stays when a quarantine ends."""
    bench, a, _, _ = with_spare()
    fail_again(bench, a, 3)
    cordon(bench, "a")

    bench.advance(2 * COOLDOWN_MS)

    assert Eligibility.CORDONED is a.known_node.eligibility


def test_an_operators_reason_stays() -> None:
    """While a node is cordoned, the operator's reason is shown."""
    bench, a, _, _ = with_spare()
    cordon(bench, "a", "bad disk")

    fail_again(bench, a, 1)

    assert ("bad disk", 1) == (health(bench, "a").reason, len(health(bench, "a").failures_ms))


@pytest.mark.parametrize("ask", [cordon, uncordon])
def test_unknown_job_is_refused(ask: object) -> None:
    """A request about an unknown job changes nothing and is refused."""
    bench, *_ = with_spare()

    refusal = ask(bench, "a", job_id="other").refusal  # type: ignore[operator]

    assert (RefusalKind.UNKNOWN_JOB, (("job_id", "other"),)) == (refusal.kind, refusal.facts)


def test_requests_are_events() -> None:
    """The log names every cordon, uncordon and quarantine with its reason."""
    bench, a, _, _ = with_spare()
    fail_again(bench, a, 3)
    cordon(bench, "c", "bad disk")
    uncordon(bench, "c")

    facts = {
        effect.reason: dict(effect.facts)
        for effect in bench.effects
        if isinstance(effect, JobChanged)
    }
    assert {"node": "c", "why": "bad disk"} == facts["node_cordoned"]
    assert {"node": "c", "why": ""} == facts["node_uncordoned"]
    quarantined = facts["node_quarantined"]
    assert ("a", COOLDOWN_MS, 1) == (
        quarantined["node"],
        quarantined["for_ms"],
        quarantined["quarantines"],
    )
    assert "on node a failed first" in str(quarantined["why"])
