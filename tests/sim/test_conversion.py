"""Journals of simulated coordinators go into shards and back whenever one starts again.

All rules hold, as if nothing had happened: what a restored coordinator knows is the same, and
nothing that was seen is taken back. Only the numbers of events are kept here, because the readers
of the simulation would otherwise have to begin again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rallypoint.server.core.events.log import EventLog, JobEvents
from rallypoint.server.journal.archive import conversion
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.conversion import with_shards, without_shards
from rallypoint.server.journal.archive.verify import verify_contents
from rallypoint.server.journal.codec.batches import Batch
from sim.durable.disk import IDENTITY, SECRET, Disk
from sim.seeds.campaign import Summary, run_seed
from sim.seeds.faults import DiskFault

SHARDS = 3
SEEDS = 25
MOVES_LEAST = 50


def join_with_numbers(logs: Sequence[EventLog]) -> EventLog:
    """Return one log; no two events have the same number, because all come from one journal."""
    jobs = {
        job_id: JobEvents(dropped=of_job.dropped)
        for log in logs
        for job_id, of_job in log.jobs.items()
    }
    joined = EventLog(
        max(log.last for log in logs),
        max(log.dropped for log in logs),
        max(log.evicted for log in logs),
        jobs=jobs,
    )
    events = (event for log in logs for event in log.kept())
    joined.take(tuple(sorted(events, key=lambda event: event.sequence)))
    return joined


@pytest.mark.long
@pytest.mark.timeout(600)
def test_journal_goes_into_shards_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every start of a coordinator, whatever its disk did before."""
    load, moves = Disk.load, 0

    def load_moved(disk: Disk) -> list[Batch]:
        nonlocal moves
        if disk.batches:
            moves += 1
            one = Contents(identity=IDENTITY, secret=SECRET, journals=(tuple(disk.batches),))
            several = with_shards(one, SHARDS)
            verify_contents(several, "shards")
            (journal,) = without_shards(several).journals
            disk.batches = list(journal)
        return load(disk)

    monkeypatch.setattr(Disk, "load", load_moved)
    monkeypatch.setattr(conversion, "_renumber", join_with_numbers)
    summary = Summary()
    disk = ",".join(fault.name for fault in DiskFault)
    for seed in range(SEEDS):
        summary.add(run_seed(seed, {"durable": "1", "disk": disk, "disk_every_ms": "1500"}))

    assert [result.failure for result in summary.failures] == []
    assert moves >= MOVES_LEAST
