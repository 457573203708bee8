"""The contract of a journal, kept by every store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.interface import Journal, JournalFailed, JournalInUse
from support.journal.stores import Store, joined, large, small

MIB = 1_048_576
MANY = 2_000


async def opened(store: Store) -> Journal:
    """Open a journal that holds nothing."""
    journal = await store.open()
    loaded = await journal.load()
    assert (0, 0, 0) == (len(loaded.records), loaded.now_ms, loaded.unix_ms)
    return journal


async def written(store: Store, *batches: Sequence[JournalRecord]) -> Journal:
    """Open a journal and append these batches, at 10, 20, … ms."""
    journal = await opened(store)
    for number, batch in enumerate(batches, 1):
        await journal.append(batch, 10 * number)
    return journal


async def test_new_journal_is_empty(store: Store) -> None:
    """A journal that was never written to holds nothing, and says that it is new."""
    journal = await opened(store)

    assert (0, 0) == (journal.length, journal.size)
    again = await store.reopen(journal)
    assert not (await again.load()).records
    await again.close()


async def test_records_come_back_in_order(store: Store) -> None:
    """What was appended is loaded, in order, and nothing else."""
    batches = [small(number) for number in range(1, 6)]
    journal = await store.reopen(await written(store, *batches))

    loaded = await journal.load()
    assert joined(batches) == list(loaded.records)
    assert journal.length == len(loaded.records)
    await journal.close()


async def test_times_continue(store: Store) -> None:
    """A load returns journal time and the wall clock's time as of the last batch."""
    before_ms = time.time_ns() // 1_000_000
    journal = await store.reopen(await written(store, small(1), small(2)))

    loaded = await journal.load()
    assert loaded.now_ms == 20
    assert before_ms <= loaded.unix_ms <= time.time_ns() // 1_000_000
    await journal.append(small(3), 31)
    journal = await store.reopen(journal)
    assert (await journal.load()).now_ms == 31
    await journal.compact(small(4), 42)
    journal = await store.reopen(journal)
    assert (await journal.load()).now_ms == 42
    await journal.close()


async def test_identity_and_secret_stay(store: Store) -> None:
    """A journal has the same identity and secret for ever, also after a compaction."""
    journal = await written(store, small(1))
    first = journal.identity, journal.secret
    assert (32, 32) == (len(bytes.fromhex(journal.identity)) * 2, len(journal.secret))

    await journal.compact(small(2), 20)
    journal = await store.reopen(journal)
    assert first == (journal.identity, journal.secret)
    await journal.close()


async def test_compaction_replaces_all(store: Store) -> None:
    """After a compaction a load returns only the new records, and what was appended since."""
    journal = await written(store, *(small(number) for number in range(1, 50)))
    before = journal.size
    await journal.compact(small(100), 500)
    await journal.append(small(101), 510)
    await journal.append(small(102), 520)

    journal = await store.reopen(journal)
    loaded = await journal.load()
    assert joined([small(100), small(101), small(102)]) == list(loaded.records)
    assert loaded.now_ms == 520
    assert journal.length == len(loaded.records)
    assert journal.size <= before
    await journal.close()


async def test_compaction_to_nothing(store: Store) -> None:
    """A coordinator that remembers nothing compacts its journal to nothing; it is not new."""
    journal = await written(store, small(1))
    await journal.compact((), 20)

    journal = await store.reopen(journal)
    loaded = await journal.load()
    assert ([], 20) == (list(loaded.records), loaded.now_ms)
    await journal.append(small(2), 30)
    journal = await store.reopen(journal)
    assert list(small(2)) == list((await journal.load()).records)
    await journal.close()


async def test_compactions_follow_each_other(store: Store) -> None:
    """Each compaction replaces what the one before has left, even if that still runs."""
    journal = await opened(store)
    for round in range(1, 8):
        for number in range(10):
            await journal.append(small(100 * round + number), 100 * round + number)
        await journal.compact(joined([small(round), small(round + 1)]), 100 * round + 50)
    await journal.append(small(999), 999)

    journal = await store.reopen(journal)
    expected = joined([small(7), small(8), small(999)])
    assert expected == list((await journal.load()).records)
    assert journal.length == len(expected)
    await journal.close()


async def test_appends_during_a_compaction(store: Store) -> None:
    """Batches that are appended while a snapshot is written come after it, all of them."""
    journal = await written(store, *(small(number) for number in range(1, 20)))
    snapshot = joined([small(number) for number in range(1_000, 2_500)])
    await journal.compact(snapshot, 300)
    appended = [small(number) for number in range(3_000, 3_040)]
    for number, batch in enumerate(appended):
        await journal.append(batch, 310 + number)
        await asyncio.sleep(0)

    journal = await store.reopen(journal)
    assert snapshot + joined(appended) == list((await journal.load()).records)
    await journal.close()


async def test_large_batches(store: Store) -> None:
    """A batch may take several MiB, and so may a snapshot."""
    batches = [large(1, 4 * MIB), small(2), large(3, 7 * MIB)]
    journal = await written(store, *batches)
    assert journal.size > 11 * MIB

    journal = await store.reopen(journal)
    assert joined(batches) == list((await journal.load()).records)
    snapshot = joined([large(number, MIB) for number in range(4, 12)])
    await journal.compact(snapshot, 100)
    journal = await store.reopen(journal)
    assert snapshot == list((await journal.load()).records)
    assert 8 * MIB < journal.size < 9 * MIB
    await journal.close()


@pytest.mark.long
async def test_thousands_of_batches(store: Store) -> None:
    """Thousands of batches come back in order, before and after compactions."""
    journal = await opened(store)
    kept: list[JournalRecord] = []
    for number in range(1, MANY + 1):
        await journal.append(small(number), number)
        kept += small(number)
        if number % 700 == 0:
            kept = kept[-300:]
            await journal.compact(tuple(kept), number)

    journal = await store.reopen(journal)
    assert kept == list((await journal.load()).records)
    await journal.close()


async def test_second_coordinator_is_refused(store: Store) -> None:
    """Only one coordinator has a journal open; the other learns which file and what to do."""
    journal = await written(store, small(1))
    with pytest.raises(JournalInUse) as caught:
        await opened(store)
    assert "\n" not in str(caught.value)

    await journal.append(small(2), 20)
    journal = await store.reopen(journal)
    assert joined([small(1), small(2)]) == list((await journal.load()).records)
    await journal.close()


async def test_closed_journal_takes_nothing(store: Store) -> None:
    """What is appended after the end is refused, not lost; closing twice does no harm."""
    journal = await written(store, small(1))
    await journal.close()
    await journal.close()
    with pytest.raises(JournalFailed):
        await journal.append(small(2), 20)


async def test_cancelled_append_is_whole_or_absent(store: Store) -> None:
    """A caller that gives up does not tear its batch, and the journal stays usable."""
    journal = await written(store, small(1))
    task = asyncio.ensure_future(journal.append(large(2, MIB), 20))  # noqa: TID251
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await journal.append(small(3), 30)

    journal = await store.reopen(journal)
    found = list((await journal.load()).records)
    assert found in (joined([small(1), large(2, MIB), small(3)]), joined([small(1), small(3)]))
    assert journal.length == len(found)
    await journal.close()
