"""Nodes that fail again and again are set aside, for longer every time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rallypoint.server.core.deadlines import DeadlineKind
from rallypoint.server.core.effects import DesiredStandby, RefusalKind
from rallypoint.server.core.health import (
    COOLDOWN_MS_MAX,
    HEALTH_MAX,
    compute_cooldown_ms,
    describe,
    fail,
    is_notable,
    with_health,
)
from rallypoint.server.core.model import (
    Bar,
    JobId,
    JobSpec,
    NodeHealth,
    NodeName,
    Phase,
    RoundReason,
    WaitKind,
)
from rallypoint.server.core.replay import memory_of, replay, snapshot
from support.coordinator import Bench
from support.fake_agents import JOB, FakeAgent
from support.health import (
    COOLDOWN_MS,
    SICK,
    SPEC,
    WIDE,
    WINDOW_MS,
    cordon,
    fail_again,
    health,
    lose,
    with_spare,
)

# --- What counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (2, (["a", "b"], Bar.NONE)),
        (3, (["c", "b"], Bar.QUARANTINED)),
    ],
)
def test_third_failure_sets_a_node_aside(failures: int, expected: tuple[list[str], Bar]) -> None:
    """A node that failed `quarantine_after` times is left out, and the spare has its slot."""
    bench, a, _, _ = with_spare()

    fail_again(bench, a, failures)

    assert expected == (bench.order(), a.the_node.bar)
    assert bench.job().phase is Phase.RUNNING


@pytest.mark.parametrize(("pause_ms", "is_set_aside"), [(WINDOW_MS - 1, True), (WINDOW_MS, False)])
def test_failures_count_within_the_window(pause_ms: int, is_set_aside: bool) -> None:
    """A failure as old as the window counts no more; one a millisecond younger does."""
    bench, a, _, _ = with_spare()
    fail_again(bench, a, 2)

    bench.advance(pause_ms)
    fail_again(bench, a, 1)

    assert is_set_aside == (a.the_node.bar is Bar.QUARANTINED)


def test_only_the_node_at_fault_is_counted() -> None:
    """Victims, whose failures follow from the first, are not."""
    bench, a, b, _ = with_spare()
    for _ in range(3):
        b.fail()
        a.fail()
        bench.obey()

    assert (Bar.NONE, Bar.QUARANTINED) == (a.the_node.bar, b.the_node.bar)
    assert ["a", "c"] == bench.order()


def refuse(bench: Bench, agent: FakeAgent) -> None:
    agent.refuse()


def be_overdue(bench: Bench, agent: FakeAgent) -> None:
    bench.obey(*(other for other in bench.agents.values() if other is not agent))
    bench.advance(30_000)


def block(bench: Bench, agent: FakeAgent) -> None:
    agent.block()


def leave(bench: Bench, agent: FakeAgent) -> None:
    agent.refuse(leaving=True)


def say_goodbye(bench: Bench, agent: FakeAgent) -> None:
    agent.goodbye()


def succeed_and_go(bench: Bench, agent: FakeAgent) -> None:
    agent.succeed()
    agent.break_off()
    bench.advance(500)


@pytest.mark.parametrize(
    ("harm", "counted"),
    [
        (lambda bench, agent: agent.fail(), 1),
        (refuse, 1),
        (lose, 1),
        (be_overdue, 1),
        (block, 1),
        (leave, 0),
        (say_goodbye, 0),
        (succeed_and_go, 0),
    ],
)
def test_causes_that_count(harm: object, counted: int) -> None:
    """What a node did counts against its name; that it left, or had succeeded, does not."""
    bench = Bench(replace(SPEC, quarantine_after=9))
    agents = bench.join("a", "b")
    bench.advance(SPEC.last_call_ms)
    if harm is not be_overdue:
        bench.obey()

    harm(bench, agents[0])  # type: ignore[operator]
    bench.obey()

    assert counted == len(health(bench, "a").failures_ms)
    assert 0 == len(health(bench, "b").failures_ms)


def test_growth_counts_against_nobody() -> None:
    """A round that was stopped for newcomers has no node at fault, whatever its workers do then."""
    bench = Bench(replace(WIDE, quarantine_after=1))
    a, b = bench.run_round("a", "b")
    bench.advance(60_000)
    bench.join("c")
    while bench.job().phase is Phase.RUNNING:
        bench.advance(1_000)
    b.fail()
    bench.obey()

    assert RoundReason.GROWTH is bench.rounds()[-1].reason
    assert () == bench.job().health
    assert a.group_rank == 0


def test_zero_turns_quarantine_off() -> None:
    """With `quarantine_after` 0 nobody is ever set aside, and nothing is remembered."""
    bench, a, _, _ = with_spare(replace(SPEC, quarantine_after=0))

    fail_again(bench, a, 9)

    assert (["a", "b"], ()) == (bench.order(), bench.job().health)


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_round_that_was_not_whole_counts_against_nobody(is_missing: bool) -> None:
    """When a place is empty, or claimed twice, as a coordinator takes over, no node is at fault."""
    before = Bench(SPEC, coordinator_id="before")
    a, b = before.run_round("a", "b")
    bench = Bench(SPEC, window_ms=2_500)
    bench.adopt_agent(a).hello(claim=a.claim())
    if not is_missing:
        bench.adopt_agent(b).hello(claim=b.claim())
        bench.agent("x").hello(claim=a.claim())
    bench.advance(2_500)
    bench.obey()

    assert "round_incomplete" in bench.events()
    assert () == bench.job().health


def test_an_adopted_round_counts_as_any_other() -> None:
    """A node that is lost from a round after another coordinator took that over is at fault."""
    before = Bench(SPEC, coordinator_id="before")
    agents = before.run_round("a", "b")
    bench = Bench(SPEC, window_ms=2_500)
    for agent in agents:
        bench.adopt_agent(agent).hello(claim=agent.claim())
    bench.advance(3_000)

    lose(bench, agents[0])
    bench.obey()

    assert 1 == len(health(bench, "a").failures_ms)


def test_a_loss_counts_as_soon_as_a_round_is_sealed() -> None:
    """Also one in the same millisecond."""
    bench = Bench(SPEC)
    a, _ = bench.join("a", "b")
    assert a.group_rank == 0

    a.break_off()
    bench.join("a")
    bench.obey()

    assert 1 == len(health(bench, "a").failures_ms)


# --- For how long ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quarantines", "expected_ms"),
    [(0, 300_000), (1, 600_000), (2, 1_200_000), (8, 76_800_000), (9, COOLDOWN_MS_MAX)],
)
def test_cooldown_doubles_up_to_a_day(quarantines: int, expected_ms: int) -> None:
    """Each quarantine is twice as long as the one before, and none is longer than a day."""
    assert expected_ms == compute_cooldown_ms(JobSpec(), quarantines)
    assert COOLDOWN_MS_MAX == compute_cooldown_ms(JobSpec(), 10**9)


def test_a_longer_cooldown_that_was_asked_for_stays() -> None:
    """More than a day is what an operator gets who asks for it, and it does not grow."""
    spec = JobSpec(quarantine_cooldown_ms=3 * COOLDOWN_MS_MAX)

    assert [3 * COOLDOWN_MS_MAX] * 2 == [compute_cooldown_ms(spec, count) for count in (0, 1)]


def test_a_quarantine_uses_up_its_failures() -> None:
    """After a quarantine it takes as many failures again, and the next one is longer."""
    known = NodeHealth(SICK)
    for at_ms in (1, 2, 3):
        known = fail(known, SPEC, at_ms, "it failed")
    first = known
    for at_ms in (4, 5):
        known = fail(known, SPEC, at_ms, "it failed")
    second = fail(known, SPEC, 30_000, "again")

    assert ((), 3 + COOLDOWN_MS, 1) == (
        first.failures_ms,
        first.quarantined_until_ms,
        first.quarantines,
    )
    assert ((4, 5), 1) == (known.failures_ms, known.quarantines)
    assert (30_000 + 2 * COOLDOWN_MS, 2, "again") == (
        second.quarantined_until_ms,
        second.quarantines,
        second.reason,
    )


def test_end_of_the_cooldown_makes_a_spare() -> None:
    """In a full round the node stands by, as one that has just come, and is used again."""
    bench, a, b, c = with_spare()
    fail_again(bench, a, 3)

    bench.advance(COOLDOWN_MS - 1)
    assert Bar.QUARANTINED is a.the_node.bar
    bench.advance(1)
    assert (Bar.NONE, DesiredStandby(spare=True)) == (a.the_node.bar, a.desired)
    assert "quarantine_ended" in bench.events()

    c.goodbye()
    bench.obey()
    assert (["a", "b"], 0, 1) == (bench.order(), a.group_rank, b.group_rank)


def test_end_of_the_cooldown_is_growth() -> None:
    """A round below max_nodes takes the node in again when its quarantine is over, not before."""
    bench = Bench(WIDE)
    a, b, _ = bench.run_round("a", "b", "c")
    fail_again(bench, b, 3)
    assert ["a", "c"] == bench.order()

    bench.advance(COOLDOWN_MS - 1)
    assert (Phase.RUNNING, None) == (bench.job().phase, bench.wait())
    bench.advance(1)
    assert WaitKind.GROWTH is bench.the_wait().kind
    bench.advance(WIDE.settle_ms)
    bench.obey()

    assert ["a", "c", "b"] == bench.order()
    assert RoundReason.GROWTH is bench.rounds()[-1].reason
    assert a.group_rank == 0


@pytest.mark.parametrize("late_ms", [0, 50])
def test_quarantine_ends_whatever_comes_first(late_ms: int) -> None:
    """A change of another node's health in the turn in which a quarantine ends does not hide it."""
    bench, a, _, _ = with_spare()
    fail_again(bench, a, 3)
    bench.advance(COOLDOWN_MS - 1)
    bench.now_ms += 1 + late_ms

    cordon(bench, "another")

    assert (Bar.NONE, 1) == (a.the_node.bar, bench.events().count("quarantine_ended"))


def test_nothing_is_due_after_the_last_quarantine() -> None:
    """The deadline is that of the next quarantine to end, and is gone with the last."""
    bench, a, _, c = with_spare(replace(SPEC, quarantine_after=1, min_nodes=1))
    due = (DeadlineKind.HEALTH, JOB)
    assert bench.state.deadlines.get(due) is None
    fail_again(bench, a, 1)
    first_ms = bench.now_ms + COOLDOWN_MS
    bench.advance(1_000)
    fail_again(bench, c, 1)
    assert first_ms == bench.state.deadlines.get(due)

    bench.advance(COOLDOWN_MS - 1_000)
    assert first_ms + 1_000 == bench.state.deadlines.get(due)
    bench.advance(1_000)
    assert bench.state.deadlines.get(due) is None


# --- What is remembered ---------------------------------------------------------------------------


def test_health_is_durable() -> None:
    """A replay of the journal, whole or compacted, gives it back, over the end of a run too."""
    bench = Bench(replace(SPEC, max_restarts=2))
    a, b = bench.run_round("a", "b")
    fail_again(bench, a, 2)
    cordon(bench, "b")
    a.fail()
    bench.obey()
    for agent in (a, b):
        agent.goodbye()
    bench.join("c")

    bench.check_journal()
    memory = memory_of(bench.state)
    assert (2, ["a", "b"]) == (
        memory.jobs[JobId(JOB)].run,
        [known.name for known in memory.jobs[JobId(JOB)].health],
    )
    assert memory == replay(snapshot(memory))


def test_names_are_bounded() -> None:
    """The oldest that is in order makes room; when none is, another cordon is refused."""
    bench, a, b, _ = with_spare(replace(SPEC, quarantine_after=9))
    fail_again(bench, b, 1)
    bench.advance(1)
    fail_again(bench, a, 1)
    for number in range(HEALTH_MAX - 2):
        assert cordon(bench, f"n{number:04}").refusal is None

    assert cordon(bench, "one-more").refusal is None
    assert (1, 0) == tuple(len(health(bench, name).failures_ms) for name in ("a", "b"))
    assert cordon(bench, "another").refusal is None
    assert NodeHealth(NodeName("a")) == health(bench, "a")
    transition = cordon(bench, "too-many")
    assert transition.refusal is not None
    assert RefusalKind.LIMIT_REACHED is transition.refusal.kind
    fail_again(bench, a, 1)
    assert HEALTH_MAX == len(bench.job().health)
    bench.check_journal()


def test_entries_are_kept_by_name() -> None:
    """One entry a name, sorted; a blank one is none."""
    names = [NodeName(name) for name in ("m", "c", "x", "a")]
    known: tuple[NodeHealth, ...] = ()
    for name in names:
        known = with_health(known, NodeHealth(name, reason="first"))
    known = with_health(known, NodeHealth(NodeName("m"), reason="second"))
    known = with_health(known, NodeHealth(NodeName("c")))
    known = with_health(known, NodeHealth(NodeName("never")))

    assert [("a", "first"), ("m", "second"), ("x", "first")] == [
        (health.name, health.reason) for health in known
    ]


@pytest.mark.parametrize(
    ("known", "text", "is_shown"),
    [
        (NodeHealth(SICK), "", False),
        (NodeHealth(SICK, failures_ms=(100_000 - WINDOW_MS,)), "", False),
        (NodeHealth(SICK, failures_ms=(100_001 - WINDOW_MS,)), "", True),
        (NodeHealth(SICK, quarantined_until_ms=100_000, quarantines=1), "", True),
        (NodeHealth(SICK, quarantined_until_ms=232_000, quarantines=1), "quarantined, 132 s left",
         True),
        (NodeHealth(SICK, cordoned=True), "cordoned", True),
        (NodeHealth(SICK, cordoned=True, reason=121 * "x"), "cordoned: " + 120 * "x", True),
        (NodeHealth(SICK, cordoned=True, reason="bad disk", quarantined_until_ms=232_000),
         "cordoned: bad disk", True),
    ],
)  # fmt: skip
def test_health_in_words(known: NodeHealth, text: str, is_shown: bool) -> None:
    """Why a node is set aside now, and whether there is anything to show of it."""
    assert (text, is_shown) == (describe(known, 100_000), is_notable(known, SPEC, 100_000))
