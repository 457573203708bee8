"""What a drain costs: nodes leave with notice, one after the other, and no step is lost.

Four agents and a spare run a workload that counts steps and checkpoints on notice (counter.py).
Again and again one agent gets SIGTERM with 20 s to drain. The table shows the steps that were done
and are in no checkpoint, the restart count, how workers ended, and how long each part took. In some
repeats (`--stubborn`) no worker leaves on notice, so the time runs out.

    python benchmarks/command/drains.py --repeats 50
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from harness.program import Wrong, make_parser, run
from harness.results import Results
from harness.trial import WAIT_LIMIT_S, MeasurementFailed, Process, Trial
from rallypoint.client import Client

TABLE, LEAVING = "drains", "workers leave"
NODES = 4
DRAIN_S = 20.0
SHUTDOWN_TIMEOUT_S = 5.0
Said = dict[str, Any]


@dataclass(slots=True)
class Job:
    """The job, its agents, and all reports of its workers."""

    trial: Trial
    target: str
    inbox: socket.socket
    flags: list[str]
    agents: dict[str, Process] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    started: int = 0

    def add_agent(self, *more: str) -> str:
        """Start one more agent; return its name."""
        name = f"n{self.started}"
        self.started += 1
        command = ["node-agent", "--coordinator", self.target, "--job-id", "count"]
        self.agents[name] = self.trial.start([*command, "--node-name", name, *self.flags, *more])
        return name

    def hear(self, is_enough: Callable[[], bool], limit_s: float = WAIT_LIMIT_S) -> None:
        """Collect reports of workers until `is_enough`."""
        deadline = time.monotonic() + limit_s
        while not is_enough():
            self.inbox.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                self.said.append(json.loads(self.inbox.recv(4096)))
            except TimeoutError:
                raise MeasurementFailed("the workers did not report in time") from None

    def of(self, kind: str, number: int) -> Iterator[Said]:
        """Return the reports of one kind in one round."""
        return (said for said in self.said if said["kind"] == kind and said["round"] == number)

    def await_spare(self, name: str) -> None:
        """Wait until the coordinator has a node as a spare."""
        with Client(self.target) as client, client.watch_job("count") as answers:
            for answer in answers:
                if any(node.name == name and node.spare for node in answer.job.nodes):
                    return


def drain_once(job: Job, number: int, chance: random.Random) -> dict[tuple[str, str], float]:
    """Drain one node of round `number` and wait for the next round.

    Returns: what came of it, by name and unit.
    """
    spare = job.add_agent()
    job.await_spare(spare)
    worked = sum(1 for _ in job.of("step", number)) + NODES
    job.hear(lambda: sum(1 for _ in job.of("step", number)) >= worked)
    leaver = chance.choice([said["node"] for said in job.of("start", number)])
    told_at_s = time.monotonic()
    agent = job.agents.pop(leaver)
    agent.popen.send_signal(signal.SIGTERM)
    job.hear(lambda: len({said["rank"] for said in job.of("start", number + 1)}) == NODES, 120)
    if agent.popen.wait(WAIT_LIMIT_S) != 128 + signal.SIGTERM:
        raise MeasurementFailed(f"the draining agent exited with {agent.popen.returncode}")
    again = list(job.of("start", number + 1))
    ended = {said["pid"]: said["at_s"] for said in job.of("left", number)}
    for said in job.of("signal", number):
        if said["signum"] == signal.SIGTERM:
            ended.setdefault(said["pid"], said["at_s"])
    begun = list(job.of("start", number))
    pid = next(said["pid"] for said in begun if said["node"] == leaver)
    told_s = next(
        said["at_s"] for said in job.of("signal", number) if said["signum"] == signal.SIGUSR1
    )
    done = max(said["step"] for said in job.of("step", number))
    gone_s = ended.get(pid, told_at_s)
    job.said = again  # reports of earlier rounds are not needed any more
    return {
        ("steps lost", ""): max(0, done - min(said["step"] for said in again)),
        ("restart count", ""): max(said["restarts"] for said in again),
        ("workers killed", ""): sum(said["pid"] not in ended for said in begun),
        ("SIGTERM at the agent to the signal at its worker", "s"): told_s - told_at_s,
        ("SIGTERM at the agent to the end of the worker", "s"): gone_s - told_at_s,
        ("from there to the start of the last worker", "s"): (
            max(said["at_s"] for said in again) - gone_s
        ),
    }


def measure_drains(
    repeats: int, chance: random.Random, row: str, results: Results, *, is_stubborn: bool
) -> None:
    """Run a job through `repeats` drains."""
    with Trial() as trial, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(trial.folder / "counts"))
        _, target = trial.start_coordinator()
        script = str(Path(__file__).parents[1] / "harness" / "counter.py")
        words = [str(trial.folder / "counts"), str(trial.folder / "checkpoint")]
        flags = [
            *("--nnodes", str(NODES), "--local-addr", "127.0.0.1", "--no-grow"),
            *("--drain-timeout", str(DRAIN_S), "--drain-signal", "USR1"),
            *("--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S), "--quarantine-after", "0"),
            *(script, *words, *(["stubborn"] if is_stubborn else [])),
        ]
        job = Job(trial, target, inbox, flags)
        for _ in range(NODES):
            job.add_agent()
        job.hear(lambda: len(list(job.of("start", 1))) == NODES)
        for number in range(1, repeats + 1):
            for (column, unit), value in drain_once(job, number, chance).items():
                results.add(TABLE, row, column, unit, value)
            print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)


def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Drain nodes whose workers leave, and some whose workers stay; no step may be lost."""
    chance = random.Random(arguments.seed)
    leaving = arguments.repeats - arguments.stubborn
    for row, repeats, is_stubborn in (
        (LEAVING, leaving, False),
        ("no worker leaves", arguments.stubborn, True),
    ):
        if repeats > 0:
            measure_drains(repeats, chance, row, results, is_stubborn=is_stubborn)
        results.write()
    none = ("steps lost", "workers killed", "restart count")
    counts = {column: sum(results.samples(TABLE, LEAVING, column)) for column in none}
    return [f"{LEAVING}: {column}: {count:g}" for column, count in counts.items() if count]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("Judge what a drain costs.")
    parser.add_argument("--repeats", type=int, default=50, help="drains in all (50)")
    parser.add_argument("--stubborn", type=int, default=3, help="of which no worker leaves (3)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the nodes (1)")
    return parser.parse_args()


if __name__ == "__main__":
    run(measure, parse_arguments())
