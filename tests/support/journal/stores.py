"""The stores that the contract of a journal is tested with, and records to put into them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages.records import (
    BarrierArrived,
    EpochRaised,
    JobForgotten,
    KeysWritten,
)
from rallypoint.server.core.model.barrier import Arrival, BarrierKey, Participant, ParticipantKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Gone
from rallypoint.server.core.model.keyspace import Answer, Change, Entry, Place
from rallypoint.server.journal.etcd.journal import EtcdJournal
from rallypoint.server.journal.interface import Journal
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from support.etcd.cluster import Cluster
from support.etcd.owned_shard import open_shard

JOB = JobId("job")


class Store(Protocol):
    """A place that holds one journal."""

    async def open(self) -> Journal:
        """Open the journal, as a coordinator does when it starts."""

    async def reopen(self, journal: Journal) -> Journal:
        """Close a journal and open it again."""


class SqliteStore:
    """A journal in a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.sqlite"

    async def open(self) -> SqliteJournal:
        return SqliteJournal.open(self.path)

    async def reopen(self, journal: Journal) -> SqliteJournal:
        await journal.close()
        return await self.open()


class EtcdStore:
    """A shard in etcd."""

    def __init__(self, cluster: Cluster) -> None:
        hosts = ",".join(cluster.endpoints)
        self.address = f"etcd://{hosts}/{secrets.token_hex(4)}"

    async def open(self) -> EtcdJournal:
        return await open_shard(self.address, 3, lambda: time.time_ns() // 1_000_000)

    async def reopen(self, journal: Journal) -> EtcdJournal:
        await journal.close()
        return await self.open()


def participant(rank: int) -> Participant:
    return Participant(ParticipantKind.RANK, rank, "")


def small(number: int) -> tuple[JournalRecord, ...]:
    """Return a batch of three small records that no other number has."""
    key = BarrierKey(JOB, 1, 0, f"b{number % 7}")
    arrival = Arrival(f"t{number}", 1, number, b"p" * (number % 50))
    return (
        EpochRaised(number),
        JobForgotten(JOB, Gone(number)),
        BarrierArrived(key, number, None, 5, participant(0), arrival),
    )


def large(number: int, size: int) -> tuple[JournalRecord, ...]:
    """Return a batch of one record with so many bytes."""
    value = number.to_bytes(4, "big") * (size // 4)
    change = Change(number, Place(0, f"k{number}"), Entry(value, number, number, 1))
    return (KeysWritten(JOB, 1, 1, 1, (change,), f"r{number}", Answer(number, ())),)


def joined(batches: Sequence[Sequence[JournalRecord]]) -> list[JournalRecord]:
    """Return the records of all batches, in order."""
    return [record for batch in batches for record in batch]
