"""A request of an operator that is sent again is carried out once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import OPERATIONS_MAX
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state import state
from support.core.coordinator import Bench
from support.core.fake_agents import JOB

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
