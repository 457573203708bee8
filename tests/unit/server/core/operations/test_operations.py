"""What operators do with whole jobs; a request that is sent again is carried out once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import DesiredStop
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import OPERATIONS_MAX
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.state import state
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, finished, stop_reason, worker_exit

PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1)


def do(bench: Bench, operation: inputs.Operation) -> RefusalKind | None:
    """Carry out an operation; return why it was refused, or None."""
    refusal = bench.take(operation).refusal
    return None if refusal is None else refusal.kind


def restart(round: int = 0, request_id: str = "") -> inputs.RestartJob:
    return inputs.RestartJob(JOB, round, "new data", request_id)


def running(spec: JobSpec = PAIR, *names: str) -> Bench:
    bench = Bench(spec)
    bench.run_round(*(names or ("a", "b")))
    return bench


# --- Cancel ---------------------------------------------------------------------------------------


def test_cancelled_run_ends_everywhere() -> None:
    """Every node learns the outcome and why; no restart is charged, and no round follows."""
    bench = running()
    a, b = bench.agents.values()
    assert do(bench, inputs.CancelJob(JOB, 0, "wrong data")) is None
    job = bench.job()
    assert (job.phase, job.outcome, job.counts.restart_count) == (
        Phase.CLOSED,
        Outcome.CANCELLED,
        0,
    )
    assert job.verdict is not None
    assert (job.verdict.cause, job.verdict.consequence) == (
        VerdictCause.CANCELLED,
        Consequence.ENDED,
    )
    assert job.verdict.text == "the job was cancelled: wrong data"
    assert job.history[-1].ended is RoundReason.CLOSED
    for agent in (a, b):
        assert finished(agent).outcome is Outcome.CANCELLED
    bench.check_journal()


@pytest.mark.parametrize("phase", [Phase.FORMING, Phase.STOPPING])
def test_run_is_cancelled_in_every_phase(phase: Phase) -> None:
    """Before its first round, between two, and while one is being stopped."""
    bench = Bench(PAIR)
    if phase is Phase.FORMING:
        bench.join("a")
    else:
        a, _ = bench.run_round("a", "b")
        a.fail()
    assert bench.job().phase is phase
    assert do(bench, inputs.CancelJob(JOB, 0, "")) is None
    assert bench.job().outcome is Outcome.CANCELLED
    assert bench.job().verdict is not None
    assert bench.job().verdict.text.endswith("an operator requested it")  # type: ignore[union-attr]


def test_cancel_changes_no_outcome() -> None:
    """A run that has ended keeps its own, and one that there is not yet cannot be meant."""
    bench = running()
    for agent in tuple(bench.agents.values()):
        agent.succeed()
    assert do(bench, inputs.CancelJob(JOB, 0, "")) is None
    assert bench.job().outcome is Outcome.SUCCEEDED
    other = running()
    assert do(other, inputs.CancelJob(JOB, 7, "")) is RefusalKind.LATER_RUN
    assert other.job().phase is Phase.RUNNING


# --- Restart --------------------------------------------------------------------------------------


def test_restart_costs_nothing() -> None:
    """Workers stop and start again with the same ranks. Nothing failed, and nothing is charged."""
    bench = running()
    a, b = bench.agents.values()
    ranks = (a.group_rank, b.group_rank)
    assert do(bench, restart()) is None
    assert stop_reason(a) is RoundReason.RESTART_REQUESTED
    bench.obey()
    job = bench.job()
    assert (job.round_number, job.phase, job.verdict) == (2, Phase.RUNNING, None)
    assert (job.counts.restart_count, job.counts.reformations, job.backoff_until_ms) == (
        0,
        0,
        bench.now_ms,
    )
    assert (a.group_rank, b.group_rank) == ranks
    assert job.history[-1].ended is RoundReason.RESTART_REQUESTED
    assert job.round is not None
    assert job.round.header.reason is RoundReason.RESTART_REQUESTED
    bench.check_journal()


def test_nodes_and_the_history_have_the_reason_of_the_operator() -> None:
    """A journal that is read again has it, too; a restart without one says only what it is."""
    bench = running()
    a, _ = bench.agents.values()
    assert do(bench, restart()) is None
    assert isinstance(a.desired, DesiredStop)
    assert a.desired.text == "an operator restarts the job: new data"
    bench.check_journal()
    bench.obey()
    assert bench.job().history[-1].stop_note == "new data"
    bench.check_journal()
    assert do(bench, inputs.RestartJob(JOB, 0, "")) is None
    assert isinstance(a.desired, DesiredStop)
    assert a.desired.text == "an operator restarts the job"
    bench.obey()

    assert bench.job().history[-1].stop_note == ""


def test_restart_may_be_repeated_for_ever() -> None:
    """It is no re-formation without progress."""
    bench = running()
    for number in range(30):
        assert do(bench, restart()) is None
        bench.obey()
        assert bench.job().round_number == number + 2


def test_restart_of_an_earlier_round_does_nothing() -> None:
    """The workers have started again already."""
    bench = running()
    assert do(bench, restart(round=1)) is None
    bench.obey()
    assert do(bench, restart(round=1)) is None
    assert bench.job().phase is Phase.RUNNING


def test_restart_ends_a_pause() -> None:
    """An operator who has mended the cause need not wait."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=9, crash_loop=0))
    a, _ = bench.run_round("a", "b")
    for _ in range(4):
        a.fail()
        bench.obey()
        if bench.job().phase is Phase.FORMING:
            break
    assert bench.job().backoff_until_ms > bench.now_ms
    assert do(bench, restart()) is None
    bench.obey()
    assert bench.job().phase is Phase.RUNNING


def test_round_that_is_being_restarted_may_still_succeed() -> None:
    """If all workers end with 0 while they stop, the job is done."""
    bench = running()
    a, b = bench.agents.values()
    a.succeed()
    do(bench, restart())
    b.succeed()
    assert bench.job().outcome is Outcome.SUCCEEDED


def test_failure_before_a_restart_is_charged() -> None:
    """One after it is a consequence of the stop."""
    bench = running()
    a, _ = bench.agents.values()
    do(bench, restart())
    a.exit()
    bench.obey()
    assert bench.job().counts.restart_count == 0
    assert bench.job().verdict is None


def test_failure_that_was_already_shown_is_decided_by_a_restart() -> None:
    """The culprit was still awaited: its verdict does not stay open for ever."""
    bench = running()
    a, _ = bench.agents.values()
    a.fail(worker_exit(1, said="ConnectionResetError: [Errno 104] Connection reset by peer"))
    verdict = bench.job().verdict
    assert verdict is not None and verdict.consequence is Consequence.UNDECIDED
    assert do(bench, restart()) is None
    bench.obey()
    verdict, counts = bench.job().verdict, bench.job().counts
    assert verdict is not None and verdict.consequence is Consequence.REFORMED
    assert counts.restart_count == 0


# --- Update ---------------------------------------------------------------------------------------


def test_larger_job_grows() -> None:
    """When there are nodes for it, as any round that may grow."""
    bench = running()
    assert do(bench, inputs.UpdateJob(JOB, max_nodes=3)) is None
    assert bench.job().phase is Phase.RUNNING
    bench.join("c")
    bench.advance(PAIR.grow_after_ms + PAIR.settle_time_ms)
    bench.obey()
    assert bench.job().round is not None
    assert bench.job().round.header.group_world_size == 3  # type: ignore[union-attr]


def test_smaller_job_shrinks_at_once() -> None:
    """The round stops without a charge; the nodes that are too many become spares."""
    bench = running(JobSpec(min_nodes=1, max_nodes=3), "a", "b", "c")
    assert do(bench, inputs.UpdateJob(JOB, max_nodes=2)) is None
    assert bench.job().phase is Phase.STOPPING
    bench.obey()
    job = bench.job()
    assert job.round is not None
    assert (job.round.header.group_world_size, job.round.header.reason) == (2, RoundReason.RESIZED)
    assert (job.counts.restart_count, job.counts.reformations, job.verdict) == (0, 0, None)
    bench.check_journal()


def test_round_below_a_new_minimum_waits_for_nodes() -> None:
    """It stops, and the next one needs more."""
    bench = running(JobSpec(min_nodes=2, max_nodes=4))
    assert do(bench, inputs.UpdateJob(JOB, min_nodes=3)) is None
    bench.obey()
    assert bench.job().phase is Phase.FORMING
    bench.join("c")
    bench.advance(PAIR.last_call_ms)
    bench.obey()
    assert bench.job().phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("absent", "min_nodes", "refused"),
    [
        ("", 3, None),  # c is a spare
        ("", 4, RefusalKind.NODES_MISSING),
        ("drain", 3, RefusalKind.NODES_MISSING),
        ("cordon", 3, RefusalKind.NODES_MISSING),
    ],
)
def test_no_round_stops_for_nodes_that_are_not_there(
    absent: str, min_nodes: int, refused: RefusalKind | None
) -> None:
    """Unless the operator wants it. A refused change changes nothing, and may be sent again."""
    bench = running()
    bench.join("c")
    if absent == "drain":
        do(bench, inputs.DrainNode(JOB, NodeName("a"), 60_000, ""))
    elif absent == "cordon":
        do(bench, inputs.Cordon(JOB, NodeName("c"), ""))
    update = inputs.UpdateJob(
        JOB, min_nodes=min_nodes, max_nodes=5, request_id="r", require_nodes=True
    )

    assert do(bench, update) is refused
    if refused is None:
        assert bench.job().phase is Phase.STOPPING
        return
    assert (bench.job().phase, bench.job().spec) == (Phase.RUNNING, PAIR)
    bench.check_journal()
    assert do(bench, replace(update, min_nodes=2)) is None, "grow as nodes come"
    assert bench.job().phase is Phase.RUNNING
    forced = replace(update, require_nodes=False, request_id="s")
    assert do(bench, forced) is None
    assert bench.job().phase is Phase.STOPPING


def test_smaller_job_needs_no_other_nodes() -> None:
    """Those that are too many leave: enough are there."""
    bench = running(JobSpec(min_nodes=1, max_nodes=3), "a", "b", "c")
    update = inputs.UpdateJob(JOB, min_nodes=2, max_nodes=2, require_nodes=True)

    assert do(bench, update) is None
    assert bench.job().phase is Phase.STOPPING


def test_agents_need_not_agree_with_what_was_changed() -> None:
    """They come back with the command line that they were started with."""
    bench = running()
    do(bench, inputs.UpdateJob(JOB, max_nodes=5, max_restarts=7))
    (late,) = bench.join("c")
    assert late.node is not None
    other = bench.agent("d", spec=JobSpec(min_nodes=2, max_nodes=2, max_restarts=1, crash_loop=9))
    refusal = other.hello().refusal
    assert refusal is not None and refusal.kind is RefusalKind.SPEC_MISMATCH


def test_restarts_are_not_taken_back() -> None:
    """The budget is at least what has been used."""
    bench = running()
    a, _ = bench.agents.values()
    a.fail()
    bench.obey()
    assert do(bench, inputs.UpdateJob(JOB, max_restarts=0)) is None
    assert bench.job().spec.max_restarts == 1
    bench.check_journal()


def test_impossible_size_is_refused() -> None:
    """The fewest nodes may not be more than the most."""
    bench = running()
    assert do(bench, inputs.UpdateJob(JOB, min_nodes=3)) is RefusalKind.SPEC_IMPOSSIBLE
    assert bench.job().spec == PAIR


def test_update_is_refused_after_a_later_one() -> None:
    """An operator who has read the job before has to look again. Other changes do not matter."""
    bench = running(JobSpec(min_nodes=1, max_nodes=4, max_restarts=3), "a", "b")
    seen = bench.state.revision_of(JOB)
    assert do(bench, inputs.UpdateJob(JOB, max_nodes=3, revision=seen)) is None
    assert do(bench, inputs.UpdateJob(JOB, max_restarts=5, revision=seen)) is (
        RefusalKind.SPEC_CHANGED
    )
    assert bench.job().spec.max_restarts == 3
    seen = bench.state.revision_of(JOB)
    do(bench, restart())
    bench.obey()
    assert bench.state.revision_of(JOB) > seen
    assert do(bench, inputs.UpdateJob(JOB, max_restarts=5, revision=seen)) is None
    assert do(bench, inputs.UpdateJob(JOB, max_restarts=6)) is None
    assert bench.job().spec.max_restarts == 6
    bench.check_journal()


def test_update_ends_with_the_run() -> None:
    """The next run has the specification of its agents."""
    bench = running()
    do(bench, inputs.UpdateJob(JOB, max_nodes=5))
    for agent in tuple(bench.agents.values()):
        agent.succeed()
        agent.goodbye()
    bench.run_round("x", "y")
    assert bench.job().run == 2
    assert (bench.job().spec, bench.job().updated) == (PAIR, frozenset())
    bench.check_journal()


# --- Delete ---------------------------------------------------------------------------------------


def test_ended_job_is_deleted() -> None:
    """Only when every node knows its outcome: one that does not would begin another run."""
    bench = running()
    assert do(bench, inputs.DeleteJob(JOB)) is RefusalKind.JOB_OPEN
    do(bench, inputs.CancelJob(JOB, 0, ""))
    assert do(bench, inputs.DeleteJob(JOB)) is RefusalKind.PREVIOUS_RUN_ENDING
    for agent in tuple(bench.agents.values()):
        agent.goodbye()
    assert do(bench, inputs.DeleteJob(JOB)) is None
    assert bench.state.jobs == {}
    assert do(bench, inputs.DeleteJob(JOB)) is RefusalKind.UNKNOWN_JOB
    bench.check_journal()


def test_only_the_run_that_is_meant_is_deleted() -> None:
    """A late request leaves the next run alone, whether it has ended or not."""
    bench = running()
    do(bench, inputs.CancelJob(JOB, 0, ""))
    for agent in tuple(bench.agents.values()):
        agent.goodbye()
    assert do(bench, inputs.CreateJob(JOB, PAIR)) is None
    assert do(bench, inputs.DeleteJob(JOB, run=1)) is RefusalKind.LATER_RUN
    do(bench, inputs.CancelJob(JOB, 0, ""))
    assert do(bench, inputs.DeleteJob(JOB, run=1)) is RefusalKind.LATER_RUN
    assert do(bench, inputs.DeleteJob(JOB, run=2)) is None


def test_fences_outlive_a_deletion() -> None:
    """Workers of a lost node may still run when the next job of the name begins."""
    bench = Bench(replace(PAIR, fence_after_ms=60_000))
    agents = bench.run_round("a", "b")
    for agent in agents:
        agent.break_off()
    do(bench, inputs.CancelJob(JOB, 0, ""))
    bench.advance(10_000)
    assert do(bench, inputs.DeleteJob(JOB)) is None
    bench.check_journal()
    bench.join("c", "d")
    bench.advance(10_000)
    assert bench.job().phase is Phase.FORMING
    bench.advance(60_000)
    assert bench.job().phase is Phase.RUNNING


def test_nodes_of_unknown_jobs_are_awaited_after_a_start() -> None:
    """The agents of the job are on their way: a drain that is sent again must not be lost."""
    bench = Bench(PAIR, window_ms=2_500)
    assert do(bench, inputs.DrainNode(JOB, NodeName("a"), 0, "", "d")) is RefusalKind.NOT_READY
    bench.advance(2_500)
    assert do(bench, inputs.DrainNode(JOB, NodeName("a"), 0, "", "d")) is RefusalKind.UNKNOWN_JOB


def test_ended_run_is_neither_restarted_nor_updated() -> None:
    """The refusal says how it ended; a new run begins with its agents."""
    bench = running()
    do(bench, inputs.CancelJob(JOB, 0, ""))
    assert do(bench, restart()) is RefusalKind.JOB_ENDED
    assert do(bench, inputs.UpdateJob(JOB, max_nodes=4)) is RefusalKind.JOB_ENDED
    stranger = JobId("other")
    assert do(bench, inputs.CancelJob(stranger, 0, "")) is RefusalKind.UNKNOWN_JOB


# --- A request that is sent again -----------------------------------------------------------------


def test_request_that_is_sent_again_is_done_once() -> None:
    """Also after what it has caused is over."""
    bench = running()
    assert do(bench, restart(request_id="r")) is None
    bench.obey()
    assert do(bench, restart(request_id="r")) is None
    assert bench.job().phase is Phase.RUNNING
    assert do(bench, restart(request_id="s")) is None
    assert bench.job().phase is Phase.STOPPING
    bench.check_journal()


def test_refused_request_may_be_tried_again() -> None:
    """It was not carried out."""
    bench = running()
    too_small = inputs.UpdateJob(JOB, min_nodes=3, request_id="r")
    assert do(bench, too_small) is RefusalKind.SPEC_IMPOSSIBLE
    assert do(bench, inputs.UpdateJob(JOB, max_nodes=3, request_id="s")) is None
    assert do(bench, too_small) is None
    assert bench.job().spec.min_nodes == 3


def test_id_of_another_operation_is_refused() -> None:
    """Otherwise the second operation would be taken for a repetition, and be lost."""
    bench = running()
    assert do(bench, restart(request_id="r")) is None
    bench.obey()
    assert do(bench, inputs.CancelJob(JOB, 1, "", "r")) is RefusalKind.REQUEST_ID_REUSED
    assert do(bench, restart(round=2, request_id="r")) is RefusalKind.REQUEST_ID_REUSED
    assert do(bench, restart(request_id="r")) is None
    assert bench.job().phase is Phase.RUNNING
    bench.check_journal()


def test_remembered_requests_are_bounded() -> None:
    """The latest ones."""
    bench = running()
    for number in range(OPERATIONS_MAX + 5):
        do(bench, inputs.RestartJob(JOB, 7, "", f"r{number}"))
    assert len(bench.job().operations) == OPERATIONS_MAX
    assert bench.job().operations[-1].startswith(f"r{OPERATIONS_MAX + 4} ")
    bench.check_journal()


def test_delete_that_is_sent_again_succeeds() -> None:
    """As long as it is remembered. It does not delete a later job of the same name."""
    bench = running()
    do(bench, inputs.CancelJob(JOB, 0, ""))
    for agent in tuple(bench.agents.values()):
        agent.goodbye()
    delete = inputs.DeleteJob(JOB, 0, "d")
    assert do(bench, delete) is None
    assert do(bench, delete) is None
    assert do(bench, inputs.DeleteJob(JOB, 0, "e")) is RefusalKind.UNKNOWN_JOB
    assert do(bench, inputs.CreateJob(JOB, PAIR)) is None
    assert do(bench, delete) is None
    assert bench.job().phase is Phase.FORMING
    bench.check_journal()


def test_requests_outlive_the_run() -> None:
    """A request that was carried out in one run does nothing to the next."""
    bench = running()
    cancel = inputs.CancelJob(JOB, 0, "", "c")
    do(bench, cancel)
    for agent in tuple(bench.agents.values()):
        agent.goodbye()
    bench.run_round("x", "y")
    assert do(bench, cancel) is None
    assert (bench.job().run, bench.job().phase) == (2, Phase.RUNNING)
    bench.check_journal()


def test_numbers_of_a_deleted_job_are_not_used_again() -> None:
    """Its late workers and agents must not be taken for those of a new job of the name."""
    bench = running()
    do(bench, restart())
    bench.obey()
    a, b = tuple(bench.agents.values())
    a.break_off()
    do(bench, inputs.CancelJob(JOB, 0, ""))
    b.goodbye()
    bench.advance(60_000)
    assert do(bench, inputs.DeleteJob(JOB)) is None
    refusal = a.hello().refusal
    assert refusal is not None and refusal.kind is RefusalKind.OLD_RUN
    bench.run_round("c", "d")
    assert (bench.job().run, bench.job().round_number) == (2, 3)
    bench.check_journal()


def test_remembered_deletions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest ones."""
    monkeypatch.setattr(state, "FORGOTTEN_MAX", 8)
    bench = Bench(PAIR)
    for number in range(8 + 3):
        job_id = JobId(f"j{number}")
        do(bench, inputs.CreateJob(job_id, PAIR))
        do(bench, inputs.CancelJob(job_id, 0, ""))
        assert do(bench, inputs.DeleteJob(job_id, 0, "d")) is None
    assert len(bench.state.gone) == 8
    assert JobId("j2") not in bench.state.gone
    assert JobId("j3") in bench.state.gone
    bench.check_journal()


def test_drain_that_is_sent_again_changes_nothing() -> None:
    """Neither the time that is left, nor the next agent of the name."""
    bench = running()
    a, _ = bench.agents.values()
    drain = inputs.DrainNode(JOB, NodeName("a"), 60_000, "repair", "d")
    assert do(bench, drain) is None
    bench.advance(10_000)
    assert do(bench, drain) is None
    assert a.node is not None and a.node.drain is not None
    assert a.node.drain.until_ms == bench.now_ms + 50_000
    a.goodbye()
    bench.obey()
    assert do(bench, drain) is None
    (again,) = bench.join("a")
    assert do(bench, drain) is None
    assert again.node is not None and again.node.drain is None
    assert do(bench, replace(drain, request_id="e")) is None
    assert again.node.drain is not None
    bench.check_journal()


def test_cordon_that_is_sent_again_changes_nothing() -> None:
    """What another operator did meanwhile stays."""
    bench = running()
    cordon = inputs.Cordon(JOB, NodeName("a"), "disk", "c")
    uncordon = inputs.Uncordon(JOB, NodeName("a"), "u")
    assert do(bench, cordon) is None
    assert do(bench, uncordon) is None
    assert do(bench, cordon) is None
    assert bench.job().health == ()
    assert do(bench, replace(cordon, request_id="d")) is None
    assert do(bench, uncordon) is None
    assert [(one.name, one.cordoned) for one in bench.job().health] == [("a", True)]
    bench.check_journal()


@pytest.mark.parametrize(
    ("operation", "digest"),
    [
        (inputs.UpdateJob(JOB, min_nodes=1, max_nodes=3), "0cdc06c3a6c582fb"),
        (inputs.Uncordon(JOB, NodeName("a")), "229551955eeeca33"),
        (inputs.Cordon(JOB, NodeName("a"), "disk"), "8870de2f7a3c25b0"),
    ],
)
def test_digest_of_a_request_does_not_change_with_the_version(
    operation: inputs.Operation, digest: str
) -> None:
    """A request may be sent again to a coordinator that was upgraded since: it is the same one."""
    bench = running()
    operation = replace(operation, request_id="r")
    assert do(bench, operation) is None

    assert (f"r {digest}",) == bench.job().operations


def test_another_reason_is_another_request() -> None:
    """Also where the reason was added later."""
    bench = running()
    first = inputs.Uncordon(JOB, NodeName("a"), "r", "repaired")
    assert do(bench, first) is None

    assert do(bench, replace(first, reason="replaced")) is RefusalKind.REQUEST_ID_REUSED
