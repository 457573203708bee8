"""What one caller can do to the jobs of others, at a coordinator with tokens and a journal.

The agents of one job beat and fail while a client on another host sends the worst it can: without a
token, as a viewer, as a worker, as an agent (`attacks.py`). Each attack has a new coordinator. Then
a process that only computes takes as much processor time as the client: what that costs the job is
the machine's part. The two hosts are 127.0.0.1 and ::1, which the coordinator takes for two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from access.attacks import ATTACKS
from harness.program import Wrong, make_parser, run
from harness.results import Results
from harness.swarm import Gathering, SimulatedAgent, living, open_channel
from harness.trial import MeasurementFailed
from harness.witness import JOB as WITNESS
from harness.witness import Witness, witness
from nodes.forming import Server, coordinator, server
from nodes.processes import raise_file_limit
from rallypoint.cli.operator.access.tokens import draw_token, to_entry
from rallypoint.wire.access import Role
from rallypoint.wire.credentials import TOKEN_KEY

TABLE = "tenants"
NODES = 8
"""Of the job that is looked at."""
LOOK_S = 0.1
SETTLE_S = (0.3, 1.3)
"""Range of the random pause before a failure. One heartbeat wide: all phases are as likely."""
STEP_S = 120.0
"""Longest wait for one step."""
BURST_S = 0.02
"""Of the process that only computes: it works and rests within so long."""
GROWN_MB_MAX = 64
LOG_MB_MAX = 1
BEAT_MS_MAX = 250
RATIO_MAX = 1.2

HERE = Path(__file__).parent
BUSY = f"""
import sys, time
share = float(sys.argv[1])
while True:
    begun = time.process_time()
    while time.process_time() - begun < share * {BURST_S}: pass
    time.sleep((1 - share) * {BURST_S})
"""


GROWN, LOG, JOURNAL = "memory of the coordinator, more", "its log, more", "its journal, more"
BEATS = {
    "alone": "heartbeats of another job, alone",
    "attack": "beside the attack",
    "computing": "beside a process that computes",
}
FAILURES = {
    "alone": "failure until every node has its next Run, alone",
    "attack": "failure, beside the attack",
    "computing": "failure, beside a process that computes",
}


@dataclass(slots=True)
class Site:
    """A coordinator, its files, and the tokens of all that call it."""

    folder: Path
    tokens: dict[str, str]
    server: Server

    @property
    def log(self) -> Path:
        """Return where its log is."""
        return self.folder / "log"

    def journal_mb(self) -> float:
        """Return how long the files of its journal are together."""
        sizes = 0
        for file in self.folder.glob("journal*"):
            with suppress(FileNotFoundError):
                sizes += file.stat().st_size
        return sizes / 1e6

    def bearer(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a caller with a token."""
        return ((TOKEN_KEY, f"Bearer {self.tokens[name]}"),)

    @asynccontextmanager
    async def attacker(self, name: str, seconds: float) -> AsyncIterator[Process]:
        """Start a client on the other host; it is prepared, and begins with a line."""
        port = self.server.target.rpartition(":")[2]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / "attacks.py"), name, f"[::1]:{port}", str(seconds)),
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, **self.tokens, "GRPC_VERBOSITY": "NONE"},
        )
        try:
            await read_line(process)
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def protected(folder: Path) -> AsyncIterator[Site]:
    """Run a coordinator with tokens and a journal while the context is open."""
    auth, tokens, entries = folder / "auth.toml", dict[str, str](), []
    for name, role, jobs in (
        ("VICTIM", Role.AGENT, ("rounds", WITNESS)),
        ("AGENT", Role.AGENT, ("attack*", "crowd")),
        ("VIEWER", Role.VIEWER, ()),
    ):
        tokens[name] = draw_token()
        entries.append(to_entry(tokens[name], name.lower(), role, jobs, None))
    auth.touch(0o600)
    auth.write_text("\n".join(entries))
    flags = (f"--state=sqlite:{folder / 'journal'}", f"--auth={auth}", "--log-level=info")
    command = coordinator(*flags, kind="two-hosts")
    with (folder / "log").open("wb") as log:
        async with server(*command, log=log) as one:
            yield Site(folder, tokens, one)


async def read_line(process: Process) -> str:
    """Return the next line of a process."""
    assert process.stdout is not None
    async with asyncio.timeout(STEP_S):
        line = await process.stdout.readline()
    if not line:
        raise RuntimeError("a process has ended")
    return line.decode().strip()


@dataclass(slots=True)
class Job:
    """The job that is looked at, and what is measured of it."""

    agents: list[SimulatedAgent]
    runs: Gathering
    beats: Witness
    results: Results
    row: str
    turn: int = 0

    async def fail(self, seconds: float, when: str) -> None:
        """Let workers fail for so long; add how long its rounds and the heartbeats take."""
        ends_s = time.monotonic() + seconds
        with self.beats.watch() as late_ms:
            while time.monotonic() < ends_s:
                await asyncio.sleep(random.uniform(*SETTLE_S))
                begun_s = time.perf_counter()
                await self.agents[self.turn % NODES].fail()
                self.turn += 1
                await self.runs.all()
                took_ms = (time.perf_counter() - begun_s) * 1000
                self.results.add(TABLE, self.row, FAILURES[when], "ms", took_ms)
        self.results.add(TABLE, self.row, BEATS[when], "ms", *late_ms)


async def look(site: Site, job: Job) -> None:
    """Add the most memory and the longest journal beside those of now, when it is cancelled."""
    before_mb, journal_mb = site.server.rss_mb(), site.journal_mb()
    grown_mb = longer_mb = 0.0
    try:
        while True:
            grown_mb = max(grown_mb, site.server.rss_mb() - before_mb)
            longer_mb = max(longer_mb, site.journal_mb() - journal_mb)
            await asyncio.sleep(LOOK_S)
    finally:
        job.results.add(TABLE, job.row, GROWN, "MB", grown_mb)
        job.results.add(TABLE, job.row, JOURNAL, "MB", longer_mb)


async def attack(site: Site, job: Job, name: str, seconds: float) -> list[str]:
    """Let the job fail alone, beside the attack, and beside a process that only computes.

    Returns: lines of the log about stalls meanwhile.
    """
    async with site.attacker(name, seconds) as client:
        await job.fail(seconds / 4, "alone")
        logged = site.log.stat().st_size
        spent_s, begun_s = site.server.cpu_s(), time.monotonic()
        assert client.stdin is not None
        client.stdin.write(b"begin\n")
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(look(site, job))
            await job.fail(seconds, "attack")
            took_s = time.monotonic() - begun_s
            spent_s = site.server.cpu_s() - spent_s
            counts = json.loads(await read_line(client))
            looking.cancel()
    results, row = job.results, job.row
    results.add(TABLE, row, "calls", "", counts["calls"])
    results.add(TABLE, row, "cores of the client", "", counts["cores"])
    results.add(TABLE, row, "cores of the coordinator", "", spent_s / took_s)
    results.add(TABLE, row, LOG, "KB", (site.log.stat().st_size - logged) / 1000)
    with site.log.open() as log:
        log.seek(logged)
        stalls = [line.strip()[:200] for line in log if "_stalled" in line]
    results.cases.append({"attack": row, "codes": counts["codes"], "stalls": stalls})
    share = min(0.99, counts["cores"])
    busy = await asyncio.create_subprocess_exec(sys.executable, "-c", BUSY, str(share))
    try:
        await job.fail(seconds / 4, "computing")
    finally:
        busy.kill()
        await busy.wait()
    return stalls


async def measure_one(row: str, name: str, seconds: float, results: Results) -> list[str]:
    """Measure one attack on a job that runs at a new coordinator; return the missed bars."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        site = await stack.enter_async_context(protected(folder))
        if "GetJob" in name:
            await stack.enter_async_context(site.attacker("crowd", 0))
        runs, metadata, target = Gathering(NODES), site.bearer("VICTIM"), site.server.target
        agents = [
            SimulatedAgent(number, NODES, runs.one, metadata=metadata) for number in range(NODES)
        ]
        channels = [open_channel(target) for _ in agents]
        await stack.enter_async_context(living(agents, channels))
        beats = await stack.enter_async_context(witness(target, metadata))
        await runs.all()
        stalls = await attack(site, Job(agents, runs, beats, results, row), name, seconds)

    def find(column: str) -> list[float]:
        return results.samples(TABLE, row, column)

    alone, beside, computing = (statistics.median(find(one)) for one in FAILURES.values())
    # What computing costs is the machine's part.
    ratio, machine = beside / alone, computing / alone
    latest_ms = max(find(BEATS["attack"]), default=0.0)
    kept = {
        f"memory grew by {find(GROWN)[0]:.0f} MB": find(GROWN)[0] <= GROWN_MB_MAX,
        f"the log grew by {find(LOG)[0]:.0f} KB": find(LOG)[0] <= LOG_MB_MAX * 1000,
        f"a heartbeat took {latest_ms:.0f} ms": latest_ms <= BEAT_MS_MAX,
        f"failures took {ratio:.2f} times as long, {machine:.2f} beside computing": (
            ratio <= RATIO_MAX * max(1.0, machine)
        ),
        f"the coordinator stalled {len(stalls)} times": not stalls,
    }
    return [f"{row}: {bar}" for bar, is_kept in kept.items() if not is_kept]


async def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Measure all attacks; return the bars that were missed."""
    raise_file_limit(8_192)
    wrong: list[str] = []
    for caller, attacks in ATTACKS.items():
        for name in attacks:
            row = f"{caller}: {name}"
            if arguments.only not in row:
                continue
            try:
                found = await measure_one(row, name, arguments.seconds, results)
            except (OSError, RuntimeError, MeasurementFailed, ExceptionGroup) as error:
                found = [f"{row}: not measured: {error!r}"]
            wrong += found
            results.write()
            print(row, *found, sep="\n  ", file=sys.stderr, flush=True)
    return wrong


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("Judge what one caller can do to other jobs.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack (default: 60)")
    parser.add_argument("--only", default="", help="only the attacks with this in their name")
    return parser.parse_args()


if __name__ == "__main__":
    run(measure, parse_arguments())
