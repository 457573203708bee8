"""The files of a coordinator's journal: what one that was killed has left in them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rallypoint.server.core.memory.replay import replay
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from rallypoint.server.journal.sqlite.witness import Witness

WATCH_S = 2.0
"""Longest wait for a write to the journal."""
_WAL_HEADER, _FRAME_HEADER = 32, 24
"""Bytes; see https://sqlite.org/fileformat2.html#the_write_ahead_log."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What a killed coordinator has left."""

    is_cut: bool = False
    """The journal ends with a batch whose append had not returned, or with a part of it. The
    witness is written when a batch is stored, and before the coordinator learns of it."""
    phases: tuple[str, ...] = ()
    """What the jobs were doing by the journal, sorted."""


@dataclass(slots=True)
class Disk:
    """The files of a journal."""

    state: str
    """As for --state."""

    @property
    def path(self) -> Path | None:
        """Return where the journal is; None: there are no files."""
        kind, _, path = self.state.partition(":")
        return Path(path) if kind == "sqlite" else None

    def size(self) -> int:
        """Return the bytes of all files."""
        files = [] if self.path is None else self.path.parent.iterdir()
        return sum(one.stat().st_size for one in files if one.is_file())

    def look(self) -> Remains:
        """Return what a coordinator that was killed has left."""
        path = self.path
        if path is None or not path.exists():
            return Remains()
        with tempfile.TemporaryDirectory() as folder:
            for suffix in ("", "-wal", "-head"):
                shutil.copy(f"{path}{suffix}", folder)
            copy = Path(folder) / path.name
            mark = Witness.open(copy.with_name(f"{copy.name}-head")).read()
            is_torn = _is_torn(copy.with_name(f"{copy.name}-wal"))
            with closing(sqlite3.connect(copy)) as connection:
                (last,) = connection.execute("SELECT max(sequence) FROM batches").fetchone()
            is_cut = is_torn or (mark is not None and (last or 0) > mark.link.sequence)
            return Remains(is_cut, asyncio.run(_read_phases(copy)))

    def stamp(self) -> int:
        """Return when the last append was written, in ns; 0: never."""
        try:
            return 0 if self.path is None else Path(f"{self.path}-wal").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def await_append(self) -> None:
        """Return as soon as something is written to the journal."""
        before, end_s = self.stamp(), time.monotonic() + WATCH_S
        while self.stamp() == before and time.monotonic() < end_s:
            pass


async def _read_phases(path: Path) -> tuple[str, ...]:
    """Return what the jobs of a journal are doing, in words."""
    journal = SqliteJournal.open(path)
    try:
        memory = replay((await journal.load()).records)
    finally:
        await journal.close()
    found = {"barrier half full" for barrier in memory.barriers.values() if barrier.is_open}
    for job_id, job in memory.jobs.items():
        nodes = memory.nodes.get(job_id, {}).values()
        if job.phase is Phase.FORMING:
            has_run = any(one.run == job.run for one in job.history)
            found.add("forming again" if has_run else "forming")
        elif job.phase is Phase.STOPPING:
            found.add("stopping")
        elif job.phase is Phase.CLOSED:
            found |= {"closing"} if nodes else set()
        elif any(node.drain is not None for node in nodes):
            found.add("draining")
        elif job.round is not None and job.round.started_ms is None:
            found.add("starting")
        elif any(not node.member for node in nodes):
            found.add("growing")
        else:
            found.add("running")
    return tuple(sorted(found))


def _is_torn(log: Path) -> bool:
    """Return whether a WAL has frames after its last commit."""
    content, at, is_torn = log.read_bytes(), _WAL_HEADER, False
    if len(content) < at:
        return False
    page_size = int.from_bytes(content[8:12], "big")
    while len(content) >= at + _FRAME_HEADER and content[at + 8 : at + 16] == content[16:24]:
        is_torn = content[at + 4 : at + 8] == bytes(4)  # no commit
        at += _FRAME_HEADER + page_size
    return is_torn
