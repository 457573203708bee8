"""When a coordinator that serves a single job is not needed any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.journal.interface import JournalInUse
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from rallypoint.server.serving.idle import UntilIdle, Use, await_idle, find_use, touch_file
from support.core.coordinator import Bench

OVER = "all jobs are over, and all nodes have left"


def ending(unused_ms: int, touch: Callable[[], None] = lambda: None) -> UntilIdle:
    return UntilIdle(unused_ms, 0, touch=touch)


async def needed(answer: object) -> Use:
    return Use(5, is_needed=True)


async def wait(uses: list[tuple[int, bool]], unused_ms: int) -> tuple[str, int]:
    """Return why a coordinator of such uses, the last for ever, ends, and after how many reads."""
    reads, change = 0, asyncio.Event()
    left: Iterator[tuple[int, bool]] = iter(uses)
    latest = uses[0]

    async def read(answer: object) -> Use:
        nonlocal reads, latest
        reads, latest = reads + 1, next(left, latest)
        change.set()
        return Use(*latest)

    def changed() -> asyncio.Event:
        nonlocal change
        change = asyncio.Event()
        return change

    return await await_idle(read, changed, ending(unused_ms)), reads


async def test_ends_when_its_jobs_are_over() -> None:
    """Not before anything has happened, nor while a run is open or a node is there."""
    why, reads = await wait([(5, False), (5, False), (6, True), (6, True), (9, False)], 60_000)

    assert (why, reads) == (OVER, 5)


async def test_ends_after_a_run_that_no_look_has_seen() -> None:
    """A run may be shorter than the pause between two looks; its revisions remain."""
    assert await wait([(5, False), (9, False)], 60_000) == (OVER, 2)


async def test_ends_when_no_node_comes() -> None:
    """What the journal holds of a run that is over does not count as use."""
    why, _ = await wait([(5, False)], 1)

    assert why == "no node has come for 0.001 s"


async def test_never_ends_while_it_is_needed() -> None:
    """However long ago it has started."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await await_idle(needed, asyncio.Event, ending(1))


async def test_lingers_for_lost_nodes_within_a_limit() -> None:
    """Those that come back to learn how their run has ended; a new run is as good a reason."""
    away = Use(9, is_needed=False, untold=(NodeName("c"),))
    uses = [Use(5, is_needed=False), away, Use(10, is_needed=True), away, Use(11, is_needed=False)]
    noted = list[bool]()

    async def read(answer: object) -> Use:
        return uses.pop(0) if len(uses) > 1 else uses[0]

    def changed() -> asyncio.Event:
        change = asyncio.Event()
        change.set()
        return change

    until = UntilIdle(60_000, 600_000, lingers=noted.append)
    assert await await_idle(read, changed, until) == OVER
    assert noted == [True, False, True, False]

    uses = [Use(5, is_needed=False), away]
    until = UntilIdle(60_000, 1, lingers=noted.append)
    why = await await_idle(read, asyncio.Event, until)
    assert why == "all jobs are over; lost nodes that do not know it: c"


async def test_reads_after_changes_alone() -> None:
    """A state that does not change is read once, besides the first time."""
    reads, change = 0, asyncio.Event()

    async def read(answer: object) -> Use:
        nonlocal reads
        reads += 1
        return Use(reads, is_needed=reads < 3)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await await_idle(read, lambda: change, ending(60_000))
    assert reads == 2
    change.set()

    assert await await_idle(read, lambda: change, ending(60_000)) == OVER


async def test_touches_its_journal(tmp_path: Path) -> None:
    """So an agent knows that it is not of the past; a file that is gone is no failure."""
    file, touched = tmp_path / "journal", list[int]()

    async def read(answer: object) -> Use:
        return Use(1, is_needed=False)

    await await_idle(read, asyncio.Event, ending(1, lambda: touched.append(1)))
    touch_file(file)

    assert touched == [1]
    assert not file.exists()


async def test_journal_is_discarded_when_it_is_closed(tmp_path: Path) -> None:
    """With the files that belong to it, and its folder; what else lies there stays with it."""
    folder = tmp_path / "hosted"
    journal = SqliteJournal.open(folder / "journal.sqlite")
    await journal.load()
    (folder / "log").touch()
    journal.discard("log", "missing")
    assert (folder / "log").exists()
    await journal.close()
    assert not folder.exists()

    kept = SqliteJournal.open(folder / "journal.sqlite")
    await kept.load()
    (folder / "other").touch()
    kept.discard("log")
    await kept.close()
    assert [path.name for path in folder.iterdir()] == ["other"]


async def test_journal_that_is_being_discarded_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that has opened the lock just before the end gets no journal without a name."""
    path = tmp_path / "journal.sqlite"
    journal = SqliteJournal.open(path)
    await journal.load()
    real = "rallypoint.server.journal.sqlite.file.fcntl.flock"

    def late(fd: int, operation: int) -> None:
        (tmp_path / "journal.sqlite-lock").unlink()

    monkeypatch.setattr(real, late)
    with pytest.raises(JournalInUse):
        SqliteJournal.open(path)
    await journal.close()


def test_use_of_a_state() -> None:
    """An open run and a node need the coordinator; a run that is over, without nodes, does not."""
    bench = Bench()
    assert find_use(bench.state, 0) == Use(0, is_needed=False)
    agents = bench.run_round("a", "b")
    assert find_use(bench.state, 0).is_needed
    for agent in agents:
        agent.succeed()
    for agent in agents:
        assert find_use(bench.state, 0).is_needed
        agent.goodbye()
    ended = find_use(bench.state, 0)

    assert not ended.is_needed
    assert ended.revision > 0


def test_run_that_all_nodes_have_left_is_needed_until_it_is_abandoned() -> None:
    """They may come back."""
    bench = Bench()
    (agent,) = bench.run_round("a")
    agent.break_off()
    bench.advance(10_000)
    assert find_use(bench.state, 0).is_needed
    bench.advance(bench.spec.join_timeout_ms)

    assert not find_use(bench.state, 0).is_needed


@pytest.mark.parametrize("nodes", [2, 40])
def test_lost_node_is_untold_until_it_has_come_back(nodes: int) -> None:
    """However many others have left since; a run that was abandoned had no one to tell."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=nodes + 2))
    names = [f"n{number}" for number in range(nodes)]
    lost, *others = bench.run_round(*names, "last")
    lost.break_off()
    bench.advance(10_000)
    bench.obey(*others)
    for agent in others:
        agent.succeed()
    for agent in others:
        agent.goodbye()
    assert find_use(bench.state, 0) == Use(
        find_use(bench.state, 0).revision, is_needed=False, untold=(NodeName("n0"),)
    )


def test_lost_node_that_was_replaced_is_not_awaited() -> None:
    """Such as a killed agent, when the next one of its host has another name."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    lost, kept = bench.run_round("a", "b")
    lost.break_off()
    bench.advance(10_000)
    bench.obey(kept)
    (new,) = bench.join("a-2")
    bench.obey(kept, new)
    for agent in (kept, new):
        agent.succeed()
    for agent in (kept, new):
        agent.goodbye()

    assert find_use(bench.state, 0).untold == ()
    assert not find_use(bench.state, 0).is_needed
