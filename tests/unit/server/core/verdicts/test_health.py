"""Which failures count against a node, and what the coordinator remembers of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.memory.replay import memory_of, replay, snapshot
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import NodeHealth
from rallypoint.server.core.model.node import Eligibility
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.verdicts import health as health_module
from rallypoint.server.core.verdicts.health import (
    ABSENT_CORDONS_MAX,
    HEALTH_MAX,
    is_notable,
    why_kept_out,
    with_health,
)
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, FakeAgent
from support.core.health import (
    SICK,
    SPEC,
    WIDE,
    WINDOW_MS,
    cordon,
    fail_again,
    health,
    lose,
    uncordon,
    with_spare,
)

# --- What counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (2, (["a", "b"], Eligibility.ELIGIBLE)),
        (3, (["c", "b"], Eligibility.QUARANTINED)),
    ],
)
def test_third_failure_sets_a_node_aside(
    failures: int, expected: tuple[list[str], Eligibility]
) -> None:
    """A node that failed `quarantine_after` times is left out, and the spare has its slot."""
    bench, a, _, _ = with_spare()

    fail_again(bench, a, failures)

    assert expected == (bench.order(), a.known_node.eligibility)
    assert bench.job().phase is Phase.RUNNING


@pytest.mark.parametrize(("pause_ms", "is_kept_out"), [(WINDOW_MS - 1, True), (WINDOW_MS, False)])
def test_failures_count_within_the_window(pause_ms: int, is_kept_out: bool) -> None:
    """A failure as old as the window no longer counts; one a millisecond younger does."""
    bench, a, _, _ = with_spare()
    fail_again(bench, a, 2)

    bench.advance(pause_ms)
    fail_again(bench, a, 1)

    assert is_kept_out == (a.known_node.eligibility is Eligibility.QUARANTINED)


def test_only_the_node_at_fault_is_counted() -> None:
    """The victims of the failure are not charged."""
    bench, a, b, _ = with_spare()
    for _ in range(3):
        b.fail()
        a.fail()
        bench.obey()

    assert (Eligibility.ELIGIBLE, Eligibility.QUARANTINED) == (
        a.known_node.eligibility,
        b.known_node.eligibility,
    )
    assert ["a", "c"] == bench.order()


def refuse(bench: Bench, agent: FakeAgent) -> None:
    agent.fail_to_start()


def be_overdue(bench: Bench, agent: FakeAgent) -> None:
    bench.obey(*(other for other in bench.agents.values() if other is not agent))
    bench.advance(30_000)


def block(bench: Bench, agent: FakeAgent) -> None:
    agent.block()


def leave(bench: Bench, agent: FakeAgent) -> None:
    agent.leave()


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
    """A failure counts against the node's name; leaving or having succeeded does not."""
    bench = Bench(replace(SPEC, quarantine_after=9))
    agents = bench.join("a", "b")
    bench.advance(SPEC.last_call_ms)
    if harm is not be_overdue:
        bench.obey()

    harm(bench, agents[0])  # type: ignore[operator]
    bench.obey()

    assert counted == len(health(bench, "a").failures_ms)
    assert 0 == len(health(bench, "b").failures_ms)


def test_growth_counts_against_no_node() -> None:
    """A round that stops for newcomers has no node at fault, whatever its workers do."""
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
    """With `quarantine_after` 0 no node is quarantined, and no failure is kept."""
    bench, a, _, _ = with_spare(replace(SPEC, quarantine_after=0))

    fail_again(bench, a, 9)

    assert (["a", "b"], ()) == (bench.order(), bench.job().health)


@pytest.mark.parametrize("is_missing", [True, False])
def test_an_incomplete_round_counts_against_no_node(is_missing: bool) -> None:
    """A slot that is empty or claimed twice when a coordinator takes over is no node's fault."""
    before = Bench(SPEC, coordinator_id="before")
    a, b = before.run_round("a", "b")
    bench = Bench(SPEC, window_ms=2_500)
    bench.adopt_agent(a).hello(held=a.held_round())
    if not is_missing:
        bench.adopt_agent(b).hello(held=b.held_round())
        bench.agent("x").hello(held=a.held_round())
    bench.advance(2_500)
    bench.obey()

    assert "round_found_incomplete" in bench.events()
    assert () == bench.job().health


def test_an_adopted_round_counts_like_any_other() -> None:
    """A node that is lost from an adopted round is at fault."""
    before = Bench(SPEC, coordinator_id="before")
    agents = before.run_round("a", "b")
    bench = Bench(SPEC, window_ms=2_500)
    for agent in agents:
        bench.adopt_agent(agent).hello(held=agent.held_round())
    bench.advance(3_000)

    lose(bench, agents[0])
    bench.obey()

    assert 1 == len(health(bench, "a").failures_ms)


def test_a_loss_counts_as_soon_as_a_round_is_sealed() -> None:
    """A loss in the millisecond of the seal counts too."""
    bench = Bench(SPEC)
    a, _ = bench.join("a", "b")
    assert a.group_rank == 0

    a.break_off()
    bench.join("a")
    bench.obey()

    assert 1 == len(health(bench, "a").failures_ms)


# --- What is remembered ---------------------------------------------------------------------------


def test_health_is_durable() -> None:
    """A replay of the journal, whole or compacted, restores health, also across runs."""
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


def test_cordons_of_absent_nodes_leave_room() -> None:
    """Misspelled names cannot keep an operator from cordoning a node that exists."""
    bench, *_ = with_spare()
    for number in range(ABSENT_CORDONS_MAX):
        assert cordon(bench, f"n{number:04}").refusal is None

    refusal = cordon(bench, "one-more").refusal
    assert refusal is not None
    assert (RefusalKind.LIMIT_REACHED, ABSENT_CORDONS_MAX) == (
        refusal.kind,
        dict(refusal.facts)["value"],
    )
    assert cordon(bench, "n0000", "another reason").refusal is None
    assert cordon(bench, "a").refusal is None
    uncordon(bench, "n0000")
    assert cordon(bench, "one-more").refusal is None


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest usable name makes room; without one, another cordon is refused."""
    monkeypatch.setattr(health_module, "ABSENT_CORDONS_MAX", HEALTH_MAX)
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
    """One entry per name, sorted; a blank health has no entry."""
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
        (NodeHealth(SICK, quarantined_until_ms=232_000, quarantines=1), "quarantined, 2m12s left",
         True),
        (NodeHealth(SICK, cordoned=True), "cordoned", True),
        (NodeHealth(SICK, cordoned=True, reason=121 * "x"), "cordoned: " + 120 * "x", True),
        (NodeHealth(SICK, cordoned=True, reason="bad disk", quarantined_until_ms=232_000),
         "cordoned: bad disk", True),
    ],
)  # fmt: skip
def test_health_in_words(known: NodeHealth, text: str, is_shown: bool) -> None:
    """The text says why a node is kept out now; notable health is shown."""
    assert (text, is_shown) == (why_kept_out(known, 100_000), is_notable(known, SPEC, 100_000))
