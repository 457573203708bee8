"""Records that no coordinator has written: they cost a job, and not the start."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.memory.replay import JournalRecord, replay
from rallypoint.server.core.memory.restore import restore
from rallypoint.server.core.messages.records import JobNoted
from rallypoint.server.core.model.round import Assignment, Member
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.fake_agents import JOB

ENDLESS = 2**50
PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1)


def failed() -> Bench:
    """Return a durable coordinator with a round that is stopped because a worker has failed."""
    bench = Bench(PAIR, durable=True)
    bench.advance(10_000)
    _, b = bench.run_round("a", "b")
    b.fail()
    return bench


def with_many_failures(record: JournalRecord) -> JournalRecord:
    """Let all ranks that there can be have failed."""
    if not isinstance(record, JobNoted) or record.changes.round is None:
        return record
    values = record.changes.round.values
    groups = tuple(
        replace(group, ranks=((0, ENDLESS),)) for group in values.get("failure_groups", ())
    )
    unlisted = ((ENDLESS, 2 * ENDLESS),)
    changed = {**values, "failure_groups": groups, "unlisted_ranks": unlisted}
    round = replace(record.changes.round, values=changed)
    return replace(record, changes=replace(record.changes, round=round))


def test_ranges_without_end() -> None:
    """Only the ranks of the nodes count: each node has one worker, and it has failed."""
    bench = failed()
    bench.restart(journal=[with_many_failures(record) for record in bench.records])

    assert [1, 1] == [len(node.exits) for node in bench.state.nodes.values()]


def crowded(place: Assignment) -> Assignment:
    return replace(place, local_world_size=ENDLESS)


def with_a_crowd(record: JournalRecord) -> JournalRecord:
    """Give each node more workers than any can have."""
    round = record.changes.values.get("round") if isinstance(record, JobNoted) else None
    if round is None:
        return record
    assert isinstance(record, JobNoted)
    members = tuple(Member(one.name, crowded(one.assignment)) for one in round.members)
    header = replace(round.header, world_size=2 * ENDLESS)
    values = {**record.changes.values, "round": replace(round, members=members, header=header)}
    return replace(record, changes=replace(record.changes, values=values))


def test_node_with_workers_without_end() -> None:
    """The job fails, and the coordinator starts."""
    bench = failed()
    memory = replay([with_a_crowd(with_many_failures(record)) for record in bench.records])
    restored = restore(
        memory,
        coordinator_id="c",
        epoch=memory.epoch + 1,
        durable=True,
        timing=bench.state.timing,
        now_ms=bench.now_ms,
        explain=lambda _, error: str(error),
    )

    verdict = restored.state.jobs[JOB].verdict
    assert verdict is not None
    assert "more workers than a node can have" in verdict.text
