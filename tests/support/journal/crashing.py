"""Appends to a SQLite journal in a child process, kills it, and checks the file; many times.

    python crashing.py PATH KILLS

It prints how many batches were acknowledged. Nothing here has threads when it forks.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages.records import EpochRaised, JobForgotten
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Gone
from rallypoint.server.journal.sqlite import file, pages
from rallypoint.server.journal.sqlite.journal import SqliteJournal

NUMBER_BYTES = 8
COMPACT_EVERY = 37
LONGEST_S = 0.06
FILLER = "x" * 3_000


def batch(number: int) -> tuple[JournalRecord, ...]:
    """Return the batch with this number; every fifth takes several pages."""
    filler = FILLER * 5 if number % 5 == 0 else ""
    return EpochRaised(number), JobForgotten(JobId(f"{number}{filler}"), Gone(number))


async def append_for_ever(path: Path, pipe: int) -> None:
    """Append batches, and write the number of each to the pipe when it is acknowledged."""
    journal = SqliteJournal.open(path)
    records = (await journal.load()).records
    number = last_of(records)
    while True:
        number += 1
        await journal.append(batch(number), number)
        os.write(pipe, number.to_bytes(NUMBER_BYTES, "big"))
        if number % COMPACT_EVERY == 0:
            await journal.compact(batch(number), number)


async def read(path: Path) -> list[JournalRecord]:
    """Return what the journal holds."""
    journal = SqliteJournal.open(path)
    try:
        return list((await journal.load()).records)
    finally:
        await journal.close()


def last_of(records: Sequence[JournalRecord]) -> int:
    """Return the number of the last batch, after checking that it is whole and in its place."""
    numbers = [record.epoch for record in records if isinstance(record, EpochRaised)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    assert list(records) == [record for number in numbers for record in batch(number)]
    return numbers[-1] if numbers else 0


def kill_one(path: Path, after_s: float, *, waits: bool) -> int:
    """Start a writer, kill it, and return the last number that it acknowledged; 0: none.

    Args:
        path: the journal.
        after_s: when to kill it.
        waits: whether that counts from its first batch, else from its start.
    """
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        asyncio.run(append_for_ever(path, its))
    os.close(its)
    with os.fdopen(ours, "rb") as pipe:
        numbers = pipe.read(NUMBER_BYTES) if waits else b""
        time.sleep(after_s)  # the moment of the kill is what is random here
        os.kill(pid, signal.SIGKILL)
        numbers += pipe.read()
    os.waitpid(pid, 0)
    return int.from_bytes(numbers[-NUMBER_BYTES:], "big")  # such a write is never cut


def main() -> None:
    path, kills = Path(sys.argv[1]), int(sys.argv[2])
    file.WAL_PAGES, pages.FREE_PAGES = 20, 4
    drawn = random.Random(kills)
    acknowledged = 0
    for kill in range(kills):
        after_s = drawn.uniform(0.005, LONGEST_S)
        acknowledged = max(acknowledged, kill_one(path, after_s, waits=kill % 3 > 0))
        found = last_of(asyncio.run(read(path)))
        assert acknowledged <= found <= acknowledged + 1, (acknowledged, found)
        acknowledged = found
    print(json.dumps({"kills": kills, "acknowledged": acknowledged}))


if __name__ == "__main__":
    main()
