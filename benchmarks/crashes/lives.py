"""The lives of one coordinator: it is started, killed and started again at one address."""

from __future__ import annotations

import asyncio
import select
import shutil
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from harness.trial import MeasurementFailed, Process, Trial
from rallypoint.agent.machine.ports import PortReserver
from rallypoint.server.core.memory.replay import replay
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from rallypoint.server.journal.sqlite.witness import Witness

WATCH_S = 2.0
"""Longest wait for a write to the journal."""
LISTEN_S = 30.0
_WAL_HEADER, _FRAME_HEADER = 32, 24
"""Bytes; see https://sqlite.org/fileformat2.html#the_write_ahead_log."""


@dataclass(slots=True)
class Life:
    """One life, as far as this process has seen it."""

    process: Process
    began_s: float
    """time.monotonic() before the process was started."""
    listening_s: float = 0.0
    """When its first line was read; 0: not yet."""
    rss_mb: float = 0.0
    """Shortly before its end."""


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
    def folder(self) -> Path | None:
        """Return where they are; None: there are none."""
        kind, _, path = self.state.partition(":")
        return Path(path).parent if kind == "sqlite" else None

    @property
    def log(self) -> Path | None:
        """Return the file that each append is written to first."""
        kind, _, path = self.state.partition(":")
        return Path(f"{path}-wal") if kind == "sqlite" else None

    def size(self) -> int:
        """Return the bytes of all files."""
        if self.folder is None:
            return 0
        return sum(one.stat().st_size for one in self.folder.iterdir() if one.is_file())

    def appends(self) -> int:
        """Return how many batches were acknowledged so far."""
        kind, _, name = self.state.partition(":")
        if kind != "sqlite":
            return 0
        mark = Witness.open(Path(f"{name}-head")).read()
        return 0 if mark is None else mark.link.sequence

    def look(self) -> Remains:
        """Return what a coordinator that was killed has left."""
        kind, _, name = self.state.partition(":")
        path = Path(name)
        if kind != "sqlite" or not path.exists():
            return Remains()
        with tempfile.TemporaryDirectory() as folder:
            for suffix in ("", "-wal", "-head"):
                shutil.copy(f"{name}{suffix}", folder)
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
            return 0 if self.log is None else self.log.stat().st_mtime_ns
        except FileNotFoundError:
            return 0


@dataclass(slots=True)
class Lives:
    """Starts and kills the coordinator."""

    trial: Trial
    state: str
    ports: PortReserver = field(default_factory=PortReserver)
    all: list[Life] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        """Reserve a port: nothing else gets it while no coordinator lives."""
        self.port = self.ports.reserve()

    @property
    def address(self) -> str:
        """Return where it listens in every life."""
        return f"127.0.0.1:{self.port}"

    @property
    def disk(self) -> Disk:
        """Return the files of its journal."""
        return Disk(self.state)

    def start(self) -> Life:
        """Start it; `await_listening` waits for it."""
        command = ["coordinator", "--host=127.0.0.1", f"--port={self.port}"]
        command += ["--log-format=json", *([f"--state={self.state}"] if self.state else [])]
        began_s = time.monotonic()
        life = Life(self.trial.start(command, stdout=subprocess.PIPE), began_s)
        self.all.append(life)
        return life

    def await_listening(self) -> None:
        """Wait until the latest one listens."""
        life = self.all[-1]
        pipe = life.process.popen.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], LISTEN_S)[0] or not pipe.read(1):
            raise MeasurementFailed("the coordinator did not start")
        life.listening_s = time.monotonic()

    def kill(self, *, in_append: bool = False) -> None:
        """SIGKILL to the latest one; on request as soon as it writes to its journal."""
        life = self.all[-1]
        if life.process.popen.poll() is not None:
            code = life.process.popen.returncode
            raise MeasurementFailed(f"the coordinator has ended by itself with {code}")
        life.rss_mb = _read_rss_mb(life.process.popen.pid)
        if in_append:
            self._await_append()
        life.process.popen.kill()
        life.process.popen.wait()

    def _await_append(self) -> None:
        """Return as soon as something is written to the journal."""
        disk, end_s = self.disk, time.monotonic() + WATCH_S
        before = disk.stamp()
        while disk.stamp() == before and time.monotonic() < end_s:
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


def _read_rss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
