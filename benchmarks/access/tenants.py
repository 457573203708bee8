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
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from access.attacks import ATTACKS
from harness.results import describe_machine
from harness.swarm import SimulatedAgent, Traffic, open_channel
from harness.tables import render_spread
from nodes.forming import WINDOW_S, Gathering, read_cpu_s, read_rss_mb
from nodes.processes import raise_file_limit
from rallypoint.cli.operator.access.tokens import Role, draw_token, to_entry
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.credentials import TOKEN_KEY
from rallypoint.wire.durations import to_duration

NODES = 8
"""Of the job that is looked at."""
BEATS = 3
"""Heartbeats in an interval; the coordinator allows four."""
BEAT_MS = 500
"""Between two heartbeats of each of its nodes, so that one is always on its way."""
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


@dataclass(slots=True)
class Found:
    """What one attack did."""

    caller: str
    attack: str
    calls: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    """How the calls ended."""
    rss_mb: float = 0.0
    """Most memory of the coordinator during the attack."""
    grown_mb: float = 0.0
    """By how much that is more than before."""
    log_kb: float = 0.0
    journal_mb: float = 0.0
    """By how much the files were longer, at most."""
    stalls: list[str] = field(default_factory=list)
    """Lines of the log about them."""
    client_cores: float = 0.0
    """Processor time of the client, by the second."""
    coordinator_cores: float = 0.0
    alone_ms: list[float] = field(default_factory=list)
    """From before the report of a failure to the last agent's Run."""
    beside_ms: list[float] = field(default_factory=list)
    control_ms: list[float] = field(default_factory=list)
    """The same beside a process that takes as much processor time."""
    alone_beats_ms: list[float] = field(default_factory=list)
    """From before a heartbeat is sent to its answer."""
    beats_ms: list[float] = field(default_factory=list)
    control_beats_ms: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Return how much longer the next round took."""
        return statistics.median(self.beside_ms) / statistics.median(self.alone_ms)

    @property
    def machine(self) -> float:
        """Return the same for the machine's part."""
        return statistics.median(self.control_ms) / statistics.median(self.alone_ms)

    @property
    def missed(self) -> list[str]:
        """Return the bars that were missed."""
        kept = {
            "memory": self.grown_mb <= GROWN_MB_MAX,
            "log": self.log_kb <= LOG_MB_MAX * 1000,
            "heartbeat": max(self.beats_ms, default=0) <= BEAT_MS_MAX,
            "failure": self.ratio <= RATIO_MAX * max(1.0, self.machine),
            "stall": not self.stalls,
        }
        return [bar for bar, is_kept in kept.items() if not is_kept]


class TimedAgent(SimulatedAgent):
    """A simulated agent that measures how long its heartbeats wait for an answer."""

    sent: tuple[int, float]
    """The latest heartbeat, and when it was sent."""
    beats_ms: list[float]
    """Gets the results."""

    async def say(self, message: agent_pb2.SessionRequest, *, numbered: bool = True) -> None:
        """Send a message in its envelope."""
        if message.HasField("heartbeat"):
            self.sent = message.heartbeat.number, time.perf_counter()
        await super().say(message, numbered=numbered)

    async def _take(self, message: agent_pb2.SessionResponse) -> None:
        if message.HasField("acknowledgement"):
            number, sent_s = self.sent
            if message.acknowledgement.heartbeat == number:
                self.beats_ms.append((time.perf_counter() - sent_s) * 1000)
        await super()._take(message)


class QuickAgent(TimedAgent):
    """An agent whose job wants a heartbeat often."""

    def hello(self) -> agent_pb2.SessionRequest:
        """Return the first message."""
        message = super().hello()
        message.hello.spec.heartbeat_interval.CopyFrom(to_duration(BEAT_MS))
        return message

    async def _take(self, message: agent_pb2.SessionResponse) -> None:
        await super()._take(message)
        given = message.welcome if message.HasField("welcome") else message.acknowledgement
        if given.HasField("heartbeat_interval"):
            self.interval_s /= BEATS  # with thousands of nodes the interval is long


@dataclass(slots=True)
class Site:
    """A coordinator, its files, and the tokens of all that call it."""

    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)
    port: int = 0
    pid: int = 0

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

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Run the coordinator while the context is open."""
        auth = self.folder / "auth.toml"
        auth.touch(0o600)
        entries = []
        for name, role, jobs in (
            ("VICTIM", Role.AGENT, ("rounds",)),
            ("AGENT", Role.AGENT, ("attack*", "crowd")),
            ("VIEWER", Role.VIEWER, ()),
        ):
            self.tokens[name] = draw_token()
            entries.append(to_entry(self.tokens[name], name.lower(), role, jobs, None))
        auth.write_text("\n".join(entries))
        script = str(HERE.parent / "harness" / "two_hosts.py")
        state = f"sqlite:{self.folder / 'journal'}"
        command = (sys.executable, script, "--host=127.0.0.1", "--port=0", "--state", state)
        with self.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, "--auth", str(auth), stdout=PIPE, stderr=log
            )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(STEP_S):
                line = (await process.stdout.readline()).decode()
            self.port, self.pid = int(line.split()[-1].rpartition(":")[2]), process.pid
            await asyncio.sleep(WINDOW_S)
            yield
        finally:
            process.terminate()
            try:
                async with asyncio.timeout(STEP_S / 4):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    @asynccontextmanager
    async def attacker(self, name: str, seconds: float) -> AsyncIterator[Process]:
        """Start a client on the other host; it is prepared, and begins with a line."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / "attacks.py")),
            *(name, f"[::1]:{self.port}", str(seconds)),
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


async def read_line(process: Process) -> str:
    """Return the next line of a process."""
    assert process.stdout is not None
    async with asyncio.timeout(STEP_S):
        line = await process.stdout.readline()
    if not line:
        raise RuntimeError("a process has ended")
    return line.decode().strip()


class Job:
    """The job that is looked at."""

    def __init__(self, site: Site) -> None:
        """Make its agents."""
        self._gathering = Gathering(NODES)
        self.agents = [
            QuickAgent(number, NODES, Traffic(), self._gathering.one) for number in range(NODES)
        ]
        for agent in self.agents:
            agent.sent, agent.beats_ms = (0, 0.0), []
            agent.metadata = ((TOKEN_KEY, f"Bearer {site.tokens['VICTIM']}"),)
        self._channels = [open_channel(site.port) for _ in self.agents]
        self._turn = 0

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Let it run while the context is open."""
        async with asyncio.TaskGroup() as lives:
            pairs = zip(self.agents, self._channels, strict=True)
            tasks = [lives.create_task(agent.live(channel)) for agent, channel in pairs]
            await self._gathering.all()
            yield
            for task in tasks:
                task.cancel()
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def fail(self, seconds: float, times_ms: list[float], beats_ms: list[float]) -> None:
        """Let workers fail for so long; note how long its rounds and heartbeats take."""
        for agent in self.agents:
            agent.beats_ms = beats_ms
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            await asyncio.sleep(random.uniform(*SETTLE_S))
            begun_s = time.perf_counter()
            await self.agents[self._turn % NODES].fail()
            self._turn += 1
            await self._gathering.all()
            times_ms.append((time.perf_counter() - begun_s) * 1000)


async def look(site: Site, found: Found, before_mb: float, journal_mb: float) -> None:
    """Note the most memory and the longest journal, until cancelled."""
    while True:
        found.rss_mb = max(found.rss_mb, read_rss_mb(site.pid))
        found.grown_mb = found.rss_mb - before_mb
        found.journal_mb = max(found.journal_mb, site.journal_mb() - journal_mb)
        await asyncio.sleep(LOOK_S)


async def attack(site: Site, job: Job, found: Found, seconds: float) -> None:
    """Let the job fail alone, beside the attack, and beside a process that only computes."""
    async with site.attacker(found.attack, seconds) as client:
        await job.fail(seconds / 4, found.alone_ms, found.alone_beats_ms)
        logged, before_mb = site.log.stat().st_size, read_rss_mb(site.pid)
        spent_s, begun_s = read_cpu_s(site.pid), time.monotonic()
        assert client.stdin is not None
        client.stdin.write(b"begin\n")
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(look(site, found, before_mb, site.journal_mb()))
            await job.fail(seconds, found.beside_ms, found.beats_ms)
            took_s = time.monotonic() - begun_s
            found.coordinator_cores = (read_cpu_s(site.pid) - spent_s) / took_s
            counts = json.loads(await read_line(client))
            looking.cancel()
    found.calls, found.codes = counts["calls"], counts["codes"]
    found.client_cores = counts["cores"]
    found.log_kb = (site.log.stat().st_size - logged) / 1000
    with site.log.open() as log:
        log.seek(logged)
        found.stalls = [line.strip()[:200] for line in log if "_stalled" in line]
    share = min(0.99, found.client_cores)
    busy = await asyncio.create_subprocess_exec(sys.executable, "-c", BUSY, str(share))
    try:
        await job.fail(seconds / 4, found.control_ms, found.control_beats_ms)
    finally:
        busy.kill()
        await busy.wait()


async def measure_one(caller: str, name: str, seconds: float) -> Found:
    """Measure one attack, at a new coordinator."""
    found = Found(caller, name)
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        async with site.serve():
            if "GetJob" in name:
                async with site.attacker("crowd", 0):
                    await run_one(site, found, seconds)
            else:
                await run_one(site, found, seconds)
    return found


async def run_one(site: Site, found: Found, seconds: float) -> None:
    """Measure one attack on a job that runs."""
    job = Job(site)
    async with job.living():
        await attack(site, job, found, seconds)


def tail(beats_ms: list[float]) -> str:
    """Return how long most heartbeats, and the slowest, took."""
    if not beats_ms:
        return "none"
    return f"{sorted(beats_ms)[len(beats_ms) * 99 // 100]:.0f} / {max(beats_ms):.0f}"


def render(found: list[Found]) -> str:
    """Return the table."""
    lines = [
        "| caller | attack | calls | codes | memory, MB | log, KB | journal, MB "
        "| cores: client, coordinator | heartbeat, ms: p99 / longest | alone | beside computing "
        "| failure to Run, ms: alone | beside it | ratio | machine's | stalls | missed |",
        "|---" * 17 + "|",
    ]
    for one in found:
        cells = [
            *(
                one.caller,
                one.attack,
                f"{one.calls:,}",
                " ".join(f"{k}:{v}" for k, v in one.codes.items()),
                f"+{one.grown_mb:.0f}",
            ),
            *(f"{one.log_kb:.0f}", f"+{one.journal_mb:.1f}"),
            f"{one.client_cores:.2f}, {one.coordinator_cores:.2f}",
            *map(tail, (one.beats_ms, one.alone_beats_ms, one.control_beats_ms)),
            *map(render_spread, (one.alone_ms, one.beside_ms)),
            *(f"{one.ratio:.2f}", f"{one.machine:.2f}", str(len(one.stalls))),
            ", ".join(one.missed),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what one caller can do to other jobs.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack (default: 60)")
    parser.add_argument("--only", default="", help="only the attacks with this in their name")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


async def measure(arguments: argparse.Namespace) -> bool:
    """Measure and print; return whether all bars are kept."""
    raise_file_limit(8_192)
    found: list[Found] = []
    failed: list[str] = []
    for caller, attacks in ATTACKS.items():
        for name in attacks:
            if arguments.only in f"{caller}: {name}":
                try:
                    one = await measure_one(caller, name, arguments.seconds)
                except (OSError, RuntimeError, ExceptionGroup) as error:
                    print(f"{caller}: {name}: {error!r}", file=sys.stderr, flush=True)
                    failed.append(f"{caller}: {name}")
                    continue
                found.append(one)
                print(render([one]).splitlines()[-1], file=sys.stderr, flush=True)
                for line in one.stalls[:3]:
                    print(f"  {line}", file=sys.stderr, flush=True)
    for fact, value in describe_machine().items():
        print(f"- {fact}: {value}")
    print(f"- command: python {' '.join(sys.argv)}\n")
    print(render(found), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=2))
    for name in failed:
        print(f"- not measured: {name}")
    return not failed and not any(one.missed for one in found)


def main() -> NoReturn:
    """Measure and print; exit with 1 if a bar is missed."""
    are_kept = asyncio.run(measure(parse_arguments()))
    sys.stdout.flush()
    os._exit(0 if are_kept else 1)  # as in rounds.py: grpc.aio may hang at the end


if __name__ == "__main__":
    main()
