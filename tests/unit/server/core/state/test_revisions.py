"""Revisions: what has changed since a reader looked, and which deletions are not remembered."""

from __future__ import annotations

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.operations import operate
from rallypoint.server.core.state import revisions
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.revisions import PER_EPOCH, Revisions
from support.core.coordinator import EPOCH, Bench

A, B, C = JobId("a"), JobId("b"), JobId("c")


def revised(*changes: tuple[JobId, bool]) -> Revisions:
    """Return the revisions after changes, numbered from 1: the job, and whether it exists."""
    counter = Revisions()
    for number, (job_id, exists) in enumerate(changes, 1):
        counter.change(job_id, number, exists=exists)
    return counter


def test_changes_since_a_revision_come_latest_first() -> None:
    """Each job once, with its latest revision; nothing that the reader has seen."""
    counter = revised((A, True), (B, True), (C, True), (A, True))

    assert [(A, 4), (C, 3)] == list(counter.changed_after(2))
    assert [] == list(counter.changed_after(4))


def test_deleted_job_is_a_deletion_until_it_exists_again() -> None:
    """It is one or the other, never both."""
    counter = revised((A, True), (A, False))
    assert ([], [(A, 2)]) == (list(counter.changed_after(0)), list(counter.deleted_after(0)))

    counter.change(A, 3, exists=True)

    assert ([(A, 3)], []) == (list(counter.changed_after(0)), list(counter.deleted_after(0)))
    assert 0 == counter.compacted


def test_oldest_deletion_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The highest revision of a forgotten one says which readers may have missed it."""
    monkeypatch.setattr(revisions, "DELETIONS_MAX", 2)
    counter = revised((A, False), (B, False), (C, False))

    assert ({B: 2, C: 3}, 1) == (counter.deletions, counter.compacted)


def test_every_change_of_a_job_has_a_revision_of_its_own() -> None:
    """Those of a new coordinator are higher than all of an earlier one."""
    bench = Bench(JobSpec(min_nodes=1))
    (agent,) = bench.run_round("a")
    bench.run_round("b", job_id="other")
    seen = bench.state.revision
    first = bench.state.revision_of(JobId("other"))
    assert first == seen > EPOCH * PER_EPOCH

    agent.break_off()

    assert bench.state.revision == seen + 1
    assert first == bench.state.revision_of(JobId("other"))
    assert Bench(epoch=EPOCH + 1).state.revision > bench.state.revision


def test_revision_of_a_job_that_does_not_exist() -> None:
    """That of its deletion, else the one after which its deletion would be remembered."""
    bench = Bench(JobSpec(min_nodes=1))
    (agent,) = bench.run_round("a")
    never = bench.state.revision_of(JobId("never"))
    agent.succeed()
    agent.goodbye()
    closed = bench.state.revision
    bench.take(inputs.DeleteJob(agent.identity.job_id))

    assert EPOCH * PER_EPOCH == never
    assert closed + 1 == bench.state.revision_of(agent.identity.job_id) == bench.state.revision


def test_raised_epoch_forgets_all_deletions() -> None:
    """Revisions of the coordinator in between may be among those of readers."""
    bench = Bench(JobSpec(min_nodes=1))
    bench.run_round("a")
    seen = bench.state.revision
    agent = bench.agent("b", job_id="other")
    agent.epoch = EPOCH + 7
    agent.hello()

    assert seen < (EPOCH + 8) * PER_EPOCH == bench.state.compacted_revision < bench.state.revision


def test_next_revision_separates_readers_of_before_and_after() -> None:
    """A draft knows the first revision that its step gives."""
    bench = Bench(JobSpec(min_nodes=1))
    bench.run_round("a")
    draft = Draft(bench.state, bench.now_ms)
    change = inputs.UpdateJob(next(iter(bench.state.jobs)), max_restarts=3)
    operate(draft, change)
    expected = draft.next_revision
    seen = bench.state.revision
    bench.take(change)

    assert seen < expected == bench.state.revision_of(change.job_id)
