"""Rounds in which no worker makes progress: the suspicion, its evidence, and its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.events import Event
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import Hang, Round, RoundReason
from rallypoint.server.core.model.spec import HangAction, JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.rounds.hangs import EVIDENCE_DUE_MS, OVERDUE
from rallypoint.server.core.state.deadlines import DeadlineKind
from support.core.coordinator import Bench, consequence
from support.core.fake_agents import JOB, FakeAgent, stop_reason, worker_exit

AFTER_MS = 300_000
TEXT = "rank 1 has not entered all_reduce number 6 of the default group"
Pair = tuple[Bench, FakeAgent, FakeAgent]


def running(action: HangAction = HangAction.REPORT, **facts: object) -> Pair:
    """Return a round of two nodes that runs for long, with a worker on each."""
    spec = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1, hang_action=action)
    bench = Bench(replace(spec, **facts))
    a, b = bench.run_round("a", "b")
    bench.advance(2 * AFTER_MS)
    return bench, a, b


def hanging(action: HangAction = HangAction.REPORT) -> Pair:
    """Return a round that is suspected to hang."""
    bench, a, b = running(action)
    stand(a, b)
    assert hang(bench) is not None
    return bench, a, b


def stand(*agents: FakeAgent, for_ms: int = AFTER_MS) -> None:
    for agent in agents:
        agent.stand_still(for_ms)


def round_of(bench: Bench) -> Round:
    round = bench.job().round
    assert round is not None
    return round


def hang(bench: Bench) -> Hang | None:
    return round_of(bench).hang


def examine(
    bench: Bench,
    rank: int | None = 1,
    text: str = TEXT,
    round: int = 1,
    job_id: str = JOB,
    *,
    is_conclusive: bool = True,
) -> None:
    """Let the evidence come."""
    said = inputs.Examined(JobId(job_id), round, rank, text, is_conclusive)
    assert bench.take(said).refusal is None


def step(bench: Bench, number: int, ago_ms: int = 0) -> None:
    """Let a worker report a step."""
    job = bench.job()
    claim = inputs.Claim(job.job_id, 1, job.round_number, "token", is_signed=True)
    assert bench.take(inputs.Progressed(claim, number, ago_ms)).refusal is None


def come_back(agent: FakeAgent, still_ms: int | None) -> None:
    """Let an agent say Hello with the round that it holds."""
    held = replace(agent.held_round(), still_ms=still_ms)
    assert agent.hello(held=held).refusal is None
    agent.beats = True


def told(bench: Bench, reason: str) -> list[Event]:
    return [event for event in bench.state.events.kept() if event.reason == reason]


def due_ms(bench: Bench) -> int | None:
    return bench.state.deadlines.get((DeadlineKind.HANG, JOB))


# --- the suspicion ---


def test_round_is_suspected_when_all_stand_still() -> None:
    """And not before; the latest progress of any of them counts."""
    bench, a, b = running()
    a.stand_still(AFTER_MS + 7_000)
    assert None is hang(bench)
    b.stand_still(AFTER_MS)

    now_ms = bench.now_ms
    assert Hang(now_ms - AFTER_MS, now_ms) == hang(bench)
    (event,) = told(bench, "hang_suspected")
    assert AFTER_MS == event.fact("still_ms")
    assert "no worker made progress for 5m" == event.fact("why")


def succeed(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    b.succeed()
    a.stand_still(AFTER_MS)


def succeed_later(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    a.stand_still(AFTER_MS)
    b.succeed()


def succeed_and_be_lost(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    b.succeed()
    b.break_off()
    a.stand_still(AFTER_MS)


def repeat(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    stand(a, a, b, b)


def take_old_step(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    step(bench, 7, AFTER_MS)
    stand(a, b)


@pytest.mark.parametrize(
    "happen", [succeed, succeed_later, succeed_and_be_lost, repeat, take_old_step]
)
def test_round_is_suspected(happen: Callable[..., None]) -> None:
    """Members that have succeeded do not count, nor does a step that is old enough."""
    bench, a, b = running()
    happen(bench, a, b)

    assert hang(bench) is not None
    assert 1 == bench.events().count("hang_suspected")


def one_moves(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    stand(a)


def one_moves_again(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    stand(a)
    a.move()
    stand(b)


def one_is_away(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    stand(a)
    b.break_off()


def one_goes_still(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    stand(b)
    b.break_off()
    stand(a)


def one_returns_moving(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    one_goes_still(bench, a, b)
    come_back(b, None)


def all_succeed(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    stand(a)
    a.succeed()


def step_is_young(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    step(bench, 7, AFTER_MS - 1)
    stand(a, b)


def report_is_stale(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    stand(a)
    b.stand_still(AFTER_MS, round=9)


def spare_stands(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    (spare,) = bench.join("c")
    stand(a)
    spare.stand_still(AFTER_MS, round=1)


@pytest.mark.parametrize(
    "happen",
    [
        *(one_moves, one_moves_again, one_is_away, one_goes_still, one_returns_moving),
        *(all_succeed, step_is_young, report_is_stale, spare_stands),
    ],
)
def test_round_is_not_suspected(happen: Callable[..., None]) -> None:
    """As long as any worker moves, or may move."""
    bench, a, b = running()
    happen(bench, a, b)

    assert Phase.RUNNING is bench.job().phase
    assert "hang_suspected" not in bench.events()


def test_zero_turns_it_off() -> None:
    """Whatever agents report, for good."""
    bench, a, b = running(hang_after_ms=0)
    stand(a, b)
    bench.advance(2 * AFTER_MS)

    assert "hang_suspected" not in bench.events()


def test_round_that_has_not_started_is_not_suspected() -> None:
    """A member has its own limit for that."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    a, b = bench.join("a", "b")
    a.start()
    stand(a, b)
    assert None is hang(bench)
    b.start()

    assert hang(bench) is not None


def test_round_waits_until_its_step_is_old() -> None:
    """A later step moves the time."""
    bench, a, b = running()
    step(bench, 1)
    stand(a, b)
    bench.advance(AFTER_MS - 1)
    step(bench, 2)
    bench.advance(AFTER_MS - 1)
    assert None is hang(bench)
    assert bench.now_ms + 1 == due_ms(bench)
    bench.advance(1)

    assert Hang(bench.now_ms - AFTER_MS, bench.now_ms) == hang(bench)


def test_new_round_forgets_everything() -> None:
    """Reports about the old one are stale."""
    bench, a, b = running()
    a.stand_still(AFTER_MS)
    b.fail()
    bench.obey()
    assert 2 == bench.job().round_number
    b.stand_still(AFTER_MS)

    assert None is hang(bench)
    assert None is a.known_node.still_since_ms


# --- its end ---


def moves(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    a.move()


def takes_step(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    step(bench, 1)


def returns_moving(bench: Bench, a: FakeAgent, b: FakeAgent) -> None:
    b.break_off()
    assert hang(bench) is not None
    come_back(b, None)


ENDS = {
    moves: "a worker makes progress again",
    takes_step: "a worker reported a step",
    returns_moving: "a worker makes progress again",
}


@pytest.mark.parametrize("happen", ENDS)
@pytest.mark.parametrize("is_examined", [False, True])
def test_any_progress_withdraws_it(happen: Callable[..., None], is_examined: bool) -> None:
    """What the evidence has shown is kept in the event alone."""
    bench, a, b = hanging()
    if is_examined:
        examine(bench)
    happen(bench, a, b)

    assert None is hang(bench)
    (event,) = told(bench, "hang_ended")
    evidence = TEXT if is_examined else None
    assert (ENDS[happen], evidence) == (event.fact("why"), event.fact("evidence"))
    assert (None if happen is not takes_step else bench.now_ms + AFTER_MS) == due_ms(bench)


def test_it_begins_again_after_a_step() -> None:
    """When the agents still report nothing, and the step has become old."""
    bench, *_ = hanging()
    step(bench, 1)
    bench.advance(AFTER_MS - 1)
    assert None is hang(bench)
    bench.advance(1)

    assert Hang(bench.now_ms - AFTER_MS, bench.now_ms) == hang(bench)
    assert 2 == bench.events().count("hang_suspected")


def test_step_of_long_ago_withdraws_nothing() -> None:
    """Its report came late: nothing moves now."""
    bench, *_ = hanging()
    step(bench, 1, AFTER_MS)

    assert hang(bench) is not None


def test_member_that_is_away_withdraws_nothing() -> None:
    """It says with its Hello whether it stands still."""
    bench, _, b = hanging()
    before = hang(bench)
    b.break_off()
    come_back(b, AFTER_MS + 1_000)

    assert before == hang(bench)
    assert "hang_ended" not in bench.events()


# --- the evidence ---


def test_evidence_names_the_rank_and_its_node() -> None:
    """REPORT stops nothing."""
    bench, *_ = hanging()
    examine(bench)
    bench.advance(10 * AFTER_MS)

    seen = hang(bench)
    assert seen is not None
    assert (True, 1, "b", TEXT) == (seen.is_examined, seen.rank, seen.name, seen.text)
    assert Phase.RUNNING is bench.job().phase
    assert None is bench.job().verdict
    bench.check_journal()


@pytest.mark.parametrize("rank", [None, 2])
def test_evidence_without_a_known_rank_names_no_node(rank: int | None) -> None:
    """The round has ranks 0 and 1."""
    bench, *_ = hanging()
    examine(bench, rank)

    seen = hang(bench)
    assert seen is not None
    assert (True, rank, "") == (seen.is_examined, seen.rank, seen.name)


def test_evidence_is_awaited_for_five_seconds() -> None:
    """What comes later still counts: people read it."""
    bench, *_ = hanging()
    bench.advance(EVIDENCE_DUE_MS - 1)
    awaited = hang(bench)
    bench.advance(1)
    overdue = hang(bench)
    examine(bench)
    late = hang(bench)

    assert awaited is not None and overdue is not None and late is not None
    assert (False, "") == (awaited.is_examined, awaited.text)
    assert (True, None, OVERDUE) == (overdue.is_examined, overdue.rank, overdue.text)
    assert (1, TEXT) == (late.rank, late.text)
    assert None is due_ms(bench)


def test_other_evidence_changes_nothing() -> None:
    """Of another round or job, of a round that is not suspected, or after the stop."""
    bench, a, b = hanging()
    before = hang(bench)
    examine(bench, round=2)
    examine(bench, job_id="other")
    assert before == hang(bench)
    a.move()
    known = bench.job()
    examine(bench)
    assert known == bench.job()
    stand(a)
    b.fail()
    stopped = bench.job()
    examine(bench)

    assert Phase.STOPPING is stopped.phase
    assert stopped == bench.job()


def test_text_of_evidence_has_a_limit() -> None:
    """It is journalled."""
    bench, *_ = hanging()
    examine(bench, text="x" * 100_000)

    seen = hang(bench)
    assert seen is not None
    assert "x" * 1_024 == seen.text


# --- restart ---


def stopped(bench: Bench) -> Job:
    job = bench.job()
    assert Phase.STOPPING is job.phase
    return job


def test_restart_stops_the_round_and_names_the_culprit() -> None:
    """It costs one restart, and counts against the node."""
    bench, a, b = hanging(HangAction.RESTART)
    assert Phase.RUNNING is bench.job().phase
    examine(bench)
    verdict = stopped(bench).verdict
    assert verdict is not None
    assert (VerdictCause.HUNG, "b") == (verdict.cause, verdict.name)
    assert f"no worker made progress for 5m: on node b, {TEXT}" == verdict.text
    assert RoundReason.HUNG is stop_reason(a) is stop_reason(b)
    bench.advance(1_000)
    bench.obey()

    job, sealed = bench.job(), round_of(bench)
    assert (1, 2) == (job.counts.restart_count, sealed.header.number)
    assert (RoundReason.HUNG, None) == (sealed.header.reason, sealed.hang)
    assert Consequence.RESTARTED is consequence(job)
    assert "" == job.counts.crash_signature
    assert [("b", 1)] == [(one.name, len(one.failures_ms)) for one in job.health]
    bench.check_journal()


def test_restart_without_a_culprit_blames_no_node() -> None:
    """All wait in the same collective."""
    bench, *_ = hanging(HangAction.RESTART)
    examine(bench, None, "all wait")
    verdict = stopped(bench).verdict
    assert verdict is not None
    assert (None, "no worker made progress for 5m: all wait") == (verdict.name, verdict.text)
    bench.obey()

    assert (1, ()) == (bench.job().counts.restart_count, bench.job().health)


def test_nothing_is_stopped_without_evidence_of_a_hang() -> None:
    """A false alarm that stops a round costs more than a hang. Late evidence counts."""
    bench, *_ = hanging(HangAction.RESTART)
    bench.advance(EVIDENCE_DUE_MS)
    assert (OVERDUE, Phase.RUNNING) == (hang(bench).text, bench.job().phase)  # type: ignore[union-attr]
    examine(bench, None, "none waits in a collective", is_conclusive=False)
    bench.advance(AFTER_MS)
    assert Phase.RUNNING is bench.job().phase
    examine(bench)

    assert Phase.STOPPING is bench.job().phase


def test_evidence_is_awaited_while_members_are_away() -> None:
    """The shell cannot ask them before they are back."""
    bench, a, b = running(HangAction.RESTART, lease_ms=60_000)
    bench.advance(AFTER_MS)
    stand(a, b)
    bench.restart()
    bench.advance(EVIDENCE_DUE_MS + 1_000)
    for agent in (a, b):
        come_back(agent, 2 * AFTER_MS)

    assert (due_ms(bench) or 0) > bench.now_ms
    assert hang(bench).is_examined is False  # type: ignore[union-attr]


def test_restart_needs_budget() -> None:
    """Like the failure of a worker."""
    bench, *_ = hanging(HangAction.RESTART)
    examine(bench)
    bench.obey()
    bench.advance(AFTER_MS)
    stand(*bench.agents.values())
    examine(bench, round=2)
    bench.obey()

    assert (Outcome.FAILED, Consequence.BUDGET_SPENT) == (
        bench.job().outcome,
        consequence(bench.job()),
    )


def test_restart_waits_for_a_member_that_is_away() -> None:
    """Its workers may make progress: only its return, or its loss, decides."""
    bench, _, b = hanging(HangAction.RESTART)
    b.break_off()
    examine(bench)
    assert Phase.RUNNING is bench.job().phase
    come_back(b, AFTER_MS)

    assert RoundReason.HUNG is stopped(bench).round.stop_reason  # type: ignore[union-attr]


def test_member_that_returns_with_progress_saves_the_round() -> None:
    """The evidence is dropped."""
    bench, _, b = hanging(HangAction.RESTART)
    b.break_off()
    examine(bench)
    come_back(b, None)
    bench.advance(EVIDENCE_DUE_MS)

    assert Phase.RUNNING is bench.job().phase
    assert None is hang(bench)


def fails(bench: Bench, b: FakeAgent) -> None:
    b.fail(worker_exit(3))


def is_lost(bench: Bench, b: FakeAgent) -> None:
    b.break_off()
    bench.advance(bench.state.timing.reconnect_grace_ms)


@pytest.mark.parametrize(
    ("happen", "cause"),
    [(fails, VerdictCause.WORKER_FAILED), (is_lost, VerdictCause.NODE_LOST)],
)
def test_failures_take_precedence(
    happen: Callable[[Bench, FakeAgent], None], cause: VerdictCause
) -> None:
    """The round is stopped for them, and the suspicion is dropped."""
    bench, _, b = hanging(HangAction.RESTART)
    happen(bench, b)
    job = stopped(bench)

    assert cause is bench.the_verdict().cause
    assert job.round is not None and job.round.hang is None
    assert None is due_ms(bench)


@pytest.mark.parametrize(
    ("after_ms", "cause"), [(500, VerdictCause.NODE_LOST), (20_000, VerdictCause.HUNG)]
)
def test_node_that_is_lost_right_after_explains_the_hang(
    after_ms: int, cause: VerdictCause
) -> None:
    """It had frozen. One that is lost later was stopped for the hang."""
    bench, a, b = hanging(HangAction.RESTART)
    examine(bench)
    bench.advance(after_ms)
    b.break_off()
    bench.advance(bench.state.timing.reconnect_grace_ms)
    bench.obey(a)

    assert cause is bench.the_verdict().cause


def test_failure_during_the_stop_changes_no_verdict() -> None:
    """It is a consequence of the stop."""
    bench, _, b = hanging(HangAction.RESTART)
    examine(bench)
    b.fail(worker_exit(3))

    assert VerdictCause.HUNG is bench.the_verdict().cause


# --- a coordinator that starts again ---


def test_suspicion_survives_the_coordinator() -> None:
    """Nothing is withdrawn before every member has come back."""
    bench, a, b = hanging()
    examine(bench)
    before = hang(bench)
    bench.restart()
    assert before == hang(bench)
    come_back(a, 2 * AFTER_MS)
    come_back(b, 2 * AFTER_MS)

    assert before == hang(bench)
    assert 1 == bench.events().count("hang_suspected")


def test_member_that_moves_after_the_start_withdraws_it() -> None:
    """Its Hello says so."""
    bench, a, _ = hanging()
    bench.restart()
    come_back(a, None)

    assert None is hang(bench)


def test_evidence_has_time_after_the_start() -> None:
    """Agents return first."""
    bench, *_ = hanging(HangAction.RESTART)
    bench.advance(EVIDENCE_DUE_MS - 1)
    bench.restart()
    started_ms = bench.now_ms

    assert started_ms + EVIDENCE_DUE_MS == due_ms(bench)


def test_hang_is_found_after_the_start() -> None:
    """The agents repeat with their Hellos that they stand still."""
    bench, a, b = running()
    a.stand_still(AFTER_MS)
    bench.restart()
    come_back(a, AFTER_MS + 1_000)
    come_back(b, AFTER_MS)

    assert Hang(bench.now_ms - AFTER_MS, bench.now_ms) == hang(bench)


def test_step_that_is_forgotten_counts_as_young() -> None:
    """The journal does not have the time of the latest step."""
    bench, a, b = running()
    step(bench, 7)
    bench.restart()
    started_ms = bench.now_ms
    come_back(a, AFTER_MS)
    come_back(b, AFTER_MS)
    assert None is hang(bench)
    bench.advance(started_ms + AFTER_MS - bench.now_ms)

    assert hang(bench) is not None


def test_coordinator_without_memory_adopts_nodes_that_stand_still() -> None:
    """It suspects the round when it has listened for as long: workers may report steps."""
    old, a, b = running()
    bench = Bench(old.spec, window_ms=2_500, coordinator_id="other")
    for agent in (a, b):
        bench.adopt_agent(agent)
        held = replace(agent.held_round(), still_ms=AFTER_MS)
        assert agent.hello(held=held).refusal is None
    b.move()
    b.stand_still(AFTER_MS)
    bench.advance(2_500)
    assert None is hang(bench)
    adopted_ms = round_of(bench).sealed_ms
    bench.advance(AFTER_MS)

    seen = hang(bench)
    assert seen is not None
    assert adopted_ms + AFTER_MS == seen.suspected_ms
