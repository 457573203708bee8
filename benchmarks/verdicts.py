"""Count how often the verdict names the right worker, over many real cascades of failures.

A job of real agents and real worker processes, without torch. In each round one worker fails in one
of several ways and takes the others with it. They fail 20 to 500 ms after it. In every other
cascade they fail before it has ended, because its connections break first: by 20 to 100 ms, or by 3
s in the slow teardown of an interpreter. Some workers record their error and hang for a minute:
with broken connections, or with open ones while another worker fails with another error. The
next round is the next cascade.

    python benchmarks/verdicts.py --cascades 120 --json verdicts.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.program import Wrong, make_parser, run
from harness.results import Results
from harness.trial import WAIT_LIMIT_S, MeasurementFailed, Trial
from rallypoint.client import Client
from rallypoint.v1 import verdict_pb2

TABLE, ALL = "verdicts", "all"
HANGS = ("hung", "hung elsewhere", "recorded teardown")
KINDS = ("exception", "recorded", "segv", "kill", "exit", "teardown", *HANGS, "oom")
"""What the first worker does; `draw_plan` says more of those that hang."""
SAYS = ("reset", "gloo", "recorded")
RIGHT_MIN = 0.99
"""Required share of verdicts that name the right worker."""
READABLE_S_MAX = 1.0
"""Longest time from the first failure to a verdict that GetJob shows."""
POLL_S = 0.005
OOM_BYTES = 16 << 20
ENDS = {
    "exception": (1, None),
    "recorded": (1, None),
    "segv": (None, int(signal.SIGSEGV)),
    "kill": (None, int(signal.SIGKILL)),
    "exit": (17, None),
    "teardown": (None, int(signal.SIGTERM)),
    **dict.fromkeys(HANGS, (None, int(signal.SIGTERM))),
    "oom": (None, int(signal.SIGKILL)),
}
"""Exit code and signal of each kind; in a long teardown the stop comes first."""


@dataclass(frozen=True, slots=True)
class Cascade:
    """One cascade and its verdict."""

    round: int
    kind: str
    early: bool
    culprit: int
    named: int | None
    readable_s: float
    """From the first failure to the first verdict on this round that GetJob showed."""
    settled_s: float
    """From the first failure to the final verdict."""
    is_exact: bool
    """The culprit's exit code and signal are right too, and for `oom` that it was killed by OOM."""
    evidence: str
    text: str

    def add_to(self, results: Results) -> None:
        """Add it to the rows that it belongs to, and print it if something is wrong."""
        is_right = self.named == self.culprit
        when = "before its own end" if self.early else "after it"
        for row in (f"{self.kind}, others fail {when}", ALL):
            results.add(TABLE, row, "right", "", is_right)
            results.add(TABLE, row, "exactly", "", is_right and self.is_exact)
            results.add(TABLE, row, "readable after", "ms", self.readable_s * 1000)
        results.cases.append(asdict(self))
        words = "right" if is_right else "WRONG"
        print(f"round {self.round}: {self.kind}, {when}: {words}", file=sys.stderr)
        if not (is_right and self.is_exact):
            print(f"  the culprit was {self.culprit}; {self.text}", file=sys.stderr)
            print(f"  {self.evidence}", file=sys.stderr)


class Inbox:
    """The socket that workers report to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cascades"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._ready: dict[tuple[int, int], tuple[int, bytes]] = {}
        """Ports and addresses of workers, by round and rank."""
        self._failing_ns: list[int] = []
        """When workers failed or saw another fail, since the last question."""

    def _receive(self, limit_s: float) -> None:
        self._socket.settimeout(limit_s)
        data, address = self._socket.recvfrom(4096)
        said = json.loads(data)
        if said["kind"] == "ready":
            self._ready[said["round"], said["rank"]] = said["port"], address
        else:
            self._failing_ns.append(said["at_ns"])

    def wait_ready(self, round: int, world_size: int) -> dict[int, tuple[int, bytes]]:
        """Wait for all workers of a round; return their ports and addresses by rank."""
        while True:
            found = {rank: place for (of, rank), place in self._ready.items() if of == round}
            if len(found) == world_size:
                return found
            try:
                self._receive(WAIT_LIMIT_S)
            except TimeoutError:
                raise MeasurementFailed(f"only {sorted(found)} came to round {round}") from None

    def send(self, address: bytes, plan: dict[str, Any]) -> None:
        self._socket.sendto(json.dumps(plan).encode(), address)

    def first_failure_ns(self) -> int:
        """Return when the first worker failed or saw another fail; all have reported it by now."""
        with suppress(BlockingIOError):
            while True:
                self._receive(0)
        first_ns = min(self._failing_ns)
        self._failing_ns.clear()
        return first_ns


@contextmanager
def memory_group() -> Iterator[str]:
    """Yield a memory cgroup that is too small for a greedy worker, or "" if none can be created."""
    group = Path("/sys/fs/cgroup/memory")
    limit = "memory.limit_in_bytes"
    if not group.is_dir():
        group, limit = Path("/sys/fs/cgroup"), "memory.max"
    group = group / f"rallypoint_verdicts_{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield ""
        return
    try:
        (group / limit).write_text(str(OOM_BYTES))
        yield str(group)
    except OSError:
        yield ""
    finally:
        group.rmdir()


def draw_plan(
    chance: random.Random, number: int, arguments: argparse.Namespace, group: str
) -> dict[str, Any]:
    """Return how the `number`-th cascade goes: kinds in turn, late and early in turn.

    While the first one hangs with open connections, a second one fails with another error: 3 s
    later anywhere, or 20 to 200 ms later on another node, whose report may arrive first.
    """
    kinds = [kind for kind in arguments.kinds if group or kind != "oom"]
    kind = kinds[number % len(kinds)]
    early = kind.endswith("teardown") or (number % len(kinds) + number // len(kinds)) % 2 == 1
    early = early and not kind.startswith("hung")
    workers, world_size = arguments.workers, arguments.workers * arguments.nodes
    culprit = chance.randrange(world_size)
    others = [rank for rank in range(world_size) if rank != culprit]
    if kind == "hung elsewhere":
        others = [rank for rank in others if rank // workers != culprit // workers]
    return {
        "kind": kind,
        "early": early,
        "culprit": culprit,
        "second": chance.choice(others),
        "second_after_s": chance.uniform(0.02, 0.2) if kind == "hung elsewhere" else 3.0,
        "linger_s": chance.uniform(0.02, 0.1),
        "group": group,
        "manners": [
            {
                "says": chance.choice(SAYS),
                "delay_s": 0.0 if early else chance.uniform(0.02, 0.5),
                # Half of the late ones are not stopped by the agent before they fail.
                "deaf": not early and chance.random() < 0.5,
            }
            for _ in range(world_size)
        ],
    }


def run_cascade(
    inbox: Inbox, client: Client, plan: dict[str, Any], round: int, world: int
) -> Cascade:
    ready = inbox.wait_ready(round, world)
    plan["ports"] = [ready[rank][0] for rank in range(world)]
    for _, address in ready.values():
        inbox.send(address, plan)
    deadline_s = time.monotonic() + WAIT_LIMIT_S
    readable_ns = 0
    while True:
        job = client.get_job("verdicts").job
        now_ns, verdict = time.monotonic_ns(), job.verdict
        if verdict.round == round:
            readable_ns = readable_ns or now_ns
            if verdict.consequence != verdict_pb2.VERDICT_CONSEQUENCE_UNDECIDED:
                break
        if time.monotonic() > deadline_s:
            raise MeasurementFailed(f"round {round} was not settled: {job}")
        time.sleep(POLL_S)
    first_ns = inbox.first_failure_ns()
    exit = verdict.culprit.exit
    end = (
        exit.exit_code if exit.HasField("exit_code") else None,
        exit.signal if exit.HasField("signal") else None,
    )
    is_exact = end == ENDS[plan["kind"]] and exit.oom_killed == (plan["kind"] == "oom")
    return Cascade(
        round=round,
        kind=plan["kind"],
        early=plan["early"],
        culprit=plan["culprit"],
        named=verdict.culprit.rank if verdict.HasField("culprit") else None,
        readable_s=(readable_ns - first_ns) / 1e9,
        settled_s=(now_ns - first_ns) / 1e9,
        is_exact=is_exact,
        evidence=verdict.evidence,
        text=verdict.text,
    )


def run_cascades(arguments: argparse.Namespace, results: Results) -> None:
    """Run a job through all cascades, and add what came of each."""
    chance = random.Random(arguments.seed)
    world = arguments.nodes * arguments.workers
    folder = tempfile.TemporaryDirectory(prefix="verdicts-")
    with folder, memory_group() as group, Trial() as trial:
        inbox = Inbox(Path(folder.name))
        _, target = trial.start_coordinator()
        flags = ["--coordinator", target, "--job-id", "verdicts", "--local-addr", "127.0.0.1"]
        flags += ["--nnodes", str(arguments.nodes), "--nproc-per-node", str(arguments.workers)]
        flags += ["--max-restarts", "100000", "--restart-backoff", "0", "--crash-loop", "0"]
        flags += ["--quarantine-after", "0", "--shutdown-timeout", "5"]
        script = [str(Path(__file__).with_name("harness") / "cascade.py"), str(inbox.path)]
        for number in range(arguments.nodes):
            trial.start(["node-agent", *flags, "--node-name", f"node{number}", *script])
        with Client(target) as client:
            for number in range(arguments.cascades):
                plan = draw_plan(chance, number, arguments, group)
                run_cascade(inbox, client, plan, number + 1, world).add_to(results)
        for _, address in inbox.wait_ready(arguments.cascades + 1, world).values():
            inbox.send(address, {})


def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Run all cascades; judge the verdicts."""
    run_cascades(arguments, results)
    right = results.samples(TABLE, ALL, "right")
    slowest_ms = max(results.samples(TABLE, ALL, "readable after"))
    wrong = []
    if sum(right) < RIGHT_MIN * len(right):
        wrong.append(f"{sum(right):.0f} of {len(right)} verdicts are right")
    if slowest_ms > READABLE_S_MAX * 1000:
        wrong.append(f"a verdict was readable after {slowest_ms:.0f} ms")
    return wrong


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("Count the verdicts that name the right worker.")
    parser.add_argument("--cascades", type=int, default=120)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="on each node")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND")
    arguments = parser.parse_args()
    if arguments.cascades < 1 or not 2 <= arguments.nodes * arguments.workers <= 250:
        parser.error("needs a cascade and 2 to 250 workers")
    if arguments.nodes < 2 and "hung elsewhere" in arguments.kinds:
        parser.error("hung elsewhere needs 2 nodes")
    return arguments


if __name__ == "__main__":
    run(measure, parse_arguments())
