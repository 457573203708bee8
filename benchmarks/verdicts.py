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
import platform
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from harness.trial import WAIT_LIMIT_S, MeasurementFailed, Trial
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.v1 import verdict_pb2
from rallypoint.wire.channel import client_options

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


class Inbox:
    """The socket that workers report to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cascades"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(WAIT_LIMIT_S)
        self._early: list[tuple[bytes, bytes]] = []
        """What workers of the next round reported before anybody waited for them."""

    def wait_ready(self, round: int, world_size: int) -> dict[int, tuple[int, bytes]]:
        """Wait for all workers of a round; return their ports and addresses by rank."""
        found: dict[int, tuple[int, bytes]] = {}
        while len(found) < world_size:
            try:
                data, address = self._early.pop() if self._early else self._socket.recvfrom(4096)
            except TimeoutError:
                raise MeasurementFailed(f"only {sorted(found)} came to round {round}") from None
            said = json.loads(data)
            if said["kind"] == "ready" and said["round"] == round:
                found[said["rank"]] = (said["port"], address)
        return found

    def send(self, address: bytes, plan: dict[str, Any]) -> None:
        self._socket.sendto(json.dumps(plan).encode(), address)

    def first_failure_ns(self) -> int:
        """Return when the first worker failed or saw another fail; all have reported it by now."""
        self._socket.setblocking(False)
        times: list[int] = []
        with suppress(BlockingIOError):
            while True:
                data, address = self._socket.recvfrom(4096)
                said = json.loads(data)
                if said["kind"] == "failing":
                    times.append(said["at_ns"])
                else:  # of the next round, which has begun
                    self._early.append((data, address))
        self._socket.settimeout(WAIT_LIMIT_S)
        return min(times)


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
    inbox: Inbox, jobs: service_grpc.JobServiceStub, plan: dict[str, Any], round: int, world: int
) -> Cascade:
    ready = inbox.wait_ready(round, world)
    plan["ports"] = [ready[rank][0] for rank in range(world)]
    for _, address in ready.values():
        inbox.send(address, plan)
    deadline_s = time.monotonic() + WAIT_LIMIT_S
    readable_ns = 0
    while True:
        job = jobs.GetJob(service_pb2.GetJobRequest(job_id="verdicts"), timeout=WAIT_LIMIT_S).job
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


def run_cascades(arguments: argparse.Namespace) -> list[Cascade]:
    chance, found = random.Random(arguments.seed), list[Cascade]()
    world = arguments.nodes * arguments.workers
    folder = tempfile.TemporaryDirectory(prefix="verdicts-")
    with folder, memory_group() as group, Trial() as trial:
        inbox = Inbox(Path(folder.name))
        coordinator = trial.start(
            ["coordinator", "--host", "127.0.0.1", "--port", "0"], stdout=subprocess.PIPE
        )
        target = trial.read_address(coordinator)
        flags = ["--coordinator", target, "--job-id", "verdicts", "--local-addr", "127.0.0.1"]
        flags += ["--nnodes", str(arguments.nodes), "--nproc-per-node", str(arguments.workers)]
        flags += ["--max-restarts", "100000", "--restart-backoff", "0", "--crash-loop", "0"]
        flags += ["--quarantine-after", "0", "--shutdown-timeout", "5"]
        script = [str(Path(__file__).with_name("harness") / "cascade.py"), str(inbox.path)]
        for number in range(arguments.nodes):
            trial.start(["node-agent", *flags, "--node-name", f"node{number}", *script])
        with grpc.insecure_channel(target, options=client_options()) as channel:
            jobs = service_grpc.JobServiceStub(channel)
            for number in range(arguments.cascades):
                plan = draw_plan(chance, number, arguments, group)
                cascade = run_cascade(inbox, jobs, plan, number + 1, world)
                found.append(cascade)
                print_cascade(cascade)
        for _, address in inbox.wait_ready(arguments.cascades + 1, world).values():
            inbox.send(address, {})
    return found


def print_cascade(cascade: Cascade) -> None:
    right = "right" if cascade.named == cascade.culprit else "WRONG"
    when = "early" if cascade.early else "late"
    print(
        f"round {cascade.round} {cascade.kind} {when}: {right}, readable after "
        f"{cascade.readable_s * 1000:.0f} ms",
        file=sys.stderr,
    )
    if cascade.named != cascade.culprit or not cascade.is_exact:
        print(f"  the culprit was {cascade.culprit}; {cascade.text}", file=sys.stderr)
        print(f"  {cascade.evidence}", file=sys.stderr)


def render(report: dict[str, object], found: list[Cascade]) -> str:
    lines = [f"- {name}: {value}" for name, value in report.items()]
    lines += ["", "| the culprit | cascades | right | exactly | readable after, median (max) |"]
    lines += ["|---|---|---|---|---|"]
    for early in (False, True):
        for kind in dict.fromkeys(cascade.kind for cascade in found):
            some = [one for one in found if (one.kind, one.early) == (kind, early)]
            if some:
                when = "before its own end" if early else "after it"
                lines.append(f"| {kind}, others fail {when} | {_cells(some)} |")
    return "\n".join([*lines, f"| all | {_cells(found)} |"])


def _cells(some: list[Cascade]) -> str:
    right = sum(one.named == one.culprit for one in some)
    exact = sum(one.named == one.culprit and one.is_exact for one in some)
    times = [one.readable_s * 1000 for one in some]
    return (
        f"{len(some)} | {right} | {exact} | {statistics.median(times):.0f} ms ({max(times):.0f} ms)"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Count the verdicts that name the right worker.")
    parser.add_argument("--cascades", type=int, default=120)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="on each node")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every cascade here")
    arguments = parser.parse_args()
    if arguments.cascades < 1 or not 2 <= arguments.nodes * arguments.workers <= 250:
        parser.error("needs a cascade and 2 to 250 workers")
    if arguments.nodes < 2 and "hung elsewhere" in arguments.kinds:
        parser.error("hung elsewhere needs 2 nodes")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    # A plain SIGTERM would end this process and leave the agents behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began, load = datetime.now(UTC), os.getloadavg()[0]
    try:
        found = run_cascades(arguments)
    except MeasurementFailed as error:
        notes = getattr(error, "__notes__", [])
        print(f"measurement failed: {error}", *notes, sep="\n", file=sys.stderr)
        return 2
    report: dict[str, object] = {
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load before": round(load, 2),
        "date": began.isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "nodes x workers": f"{arguments.nodes} x {arguments.workers}",
    }
    print(render(report, found))
    right = sum(cascade.named == cascade.culprit for cascade in found) / len(found)
    slowest_s = max(cascade.readable_s for cascade in found)
    if arguments.json:
        cascades = [{name: getattr(one, name) for name in Cascade.__slots__} for one in found]
        arguments.json.write_text(json.dumps({**report, "cascades": cascades}, indent=2) + "\n")
    return 0 if right >= RIGHT_MIN and slowest_s <= READABLE_S_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
