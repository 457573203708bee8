"""Kill the coordinator again and again, at every kind of moment: no worker and no reader notices.

Four jobs of several nodes with two workers each step and log. One of them is left alone and shares
keys and barriers; in one workers fail; one loses, drains and gains nodes; the runs of one end. Each
crash is aimed at a moment: something is done to a job, a random time passes, and the coordinator
gets SIGKILL. After 0 to 5 s it is started again. Then every job must be exactly what was done to it
(crashes/model.py), and readers that follow everything must never have seen anything taken back
(crashes/facts.py). The first difference ends the benchmark with exit code 1.

    python benchmarks/coordinator_crash.py --crashes 100
    python benchmarks/coordinator_crash.py --quick --state sqlite:/tmp/journal/journal.sqlite
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from crashes.board import Board
from crashes.crew import Crew, Ending, Failing, Moving, Stage, Steady
from crashes.facts import Facts
from crashes.figures import Crash, Totals, render
from crashes.lives import Lives
from crashes.readers import EventReader, JobReader, JobsReader, KeyReader, Poller
from harness.trial import MeasurementFailed, Trial
from launch import describe_machine
from rallypoint.client import Client, errors

AWAY_S_MAX = 5.0
"""Longest time without a coordinator."""
POLL_S = 0.03
LIMIT_S = 60.0
OTHERS = 0.3
"""How likely something is done to each other job, too; and how likely while it is not served."""
AGAIN = 0.2
"""How likely a coordinator is killed while agents return to it."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a crash is aimed at."""

    job: str
    action: str
    within_s: tuple[float, float]
    """When it comes, after the action."""
    joins: bool = False
    """The time runs from when the first new node has joined."""


MOMENTS = {
    "running": Moment("", "", (0.0, 0.5)),
    "forming": Moment("ending", "launch", (0.0, 0.3), joins=True),
    "stopping": Moment("failing", "failure", (0.0, 0.2)),
    "settling": Moment("failing", "failure", (0.2, 0.3)),
    "restarting": Moment("failing", "restart", (0.0, 0.3)),
    "draining": Moment("moving", "drain", (0.0, 1.3)),
    "growing": Moment("moving", "growth", (0.0, 0.6), joins=True),
    "leaving": Moment("moving", "leave", (0.0, 0.3)),
    "losing a node": Moment("moving", "loss", (0.0, 0.8)),
    "succeeding": Moment("ending", "success", (0.0, 0.1)),
    "cancelling": Moment("ending", "cancel", (0.0, 0.1)),
    "failing for good": Moment("ending", "failure", (0.0, 0.1)),
    "barrier half full": Moment("steady", "barrier", (0.3, 0.6)),
    "keys being written": Moment("steady", "keys", (0.0, 0.3)),
    "inside an append": Moment("steady", "keys", (0.0, 0.1)),
}


class Play:
    """The jobs, their readers, and the crashes."""

    def __init__(self, stack: ExitStack, arguments: argparse.Namespace, state: str) -> None:
        self.trial = stack.enter_context(Trial())
        self.lives = Lives(self.trial, state)
        stack.callback(self.lives.ports.close)
        self.chance = random.Random(arguments.seed)
        self.facts = Facts()
        self.crashes: list[Crash] = []
        self.longest_s: float = arguments.away
        self.starts = 0
        """Workers that had to be started."""
        self.epochs: list[int] = []
        self._seen: dict[str, int] = {}
        board = Board(self.trial.folder)
        stack.callback(board.close)
        pool = stack.enter_context(ThreadPoolExecutor(8))
        client = stack.enter_context(Client(self.lives.address))
        each = arguments.agents // 4
        jobs = ("steady", "failing", "moving", "ending")
        address = self.lives.address
        readers = {name: JobReader(address, self.facts, name) for name in jobs}
        self.stage = Stage(self.trial, self.lives, board, client, readers, self.chance, pool)
        self.crews: dict[str, Crew] = {
            "steady": Steady(self.stage, "steady", each, each, manner=("shares",)),
            "failing": Failing(self.stage, "failing", each, each, manner=("slow",)),
            "moving": Moving(self.stage, "moving", each, max(1, each - 1), manner=("slow",)),
            "ending": Ending(self.stage, "ending", each, each, max_restarts="1"),
        }
        self.events = EventReader("WatchEvents", address, self.facts)
        self.jobs = JobsReader("WatchJobs", address, self.facts)
        self.poller = Poller(address, self.facts, list(jobs), arguments.seed)
        self._stack = stack

    def open(self) -> None:
        """Start everything, and wait until it runs."""
        self.lives.start()
        self.lives.await_listening()
        for reader in (*self.stage.readers.values(), self.events, self.jobs, self.poller):
            self._stack.callback(reader.close)
            reader.start()
        for crew in self.crews.values():
            crew.open()
        self.settle()
        token = self.crews["steady"].workers()[0].token
        keys = KeyReader(self.lives.address, self.facts, "steady", token)
        self._stack.callback(keys.close)
        keys.start()

    def settle(self) -> None:
        """Wait for the consequences of everything; compare.

        Raises: MeasurementFailed for what differs.
        """
        for crew in self.crews.values():
            try:
                crew.settle()
            except (MeasurementFailed, errors.RallypointError) as error:
                raise MeasurementFailed("\n".join([str(error), *self.find()])) from error
        wrong = [text for crew in self.crews.values() for text in crew.compare()]
        wrong += self.find()
        coordinator = self.stage.client.get_coordinator().coordinator
        if self.epochs and coordinator.epoch < self.epochs[-1]:
            wrong.append(f"epoch {coordinator.epoch} after {self.epochs[-1]}")
        self.epochs.append(coordinator.epoch)
        self.events.wait_for(coordinator.last_event_sequence, LIMIT_S)
        self.poller.compare_events(coordinator.last_event_sequence)
        wrong += self._count_starts()
        if wrong:
            raise MeasurementFailed("\n".join(wrong))

    def totals(self) -> Totals:
        """Return what the crashes together amount to."""
        models = [crew.model for crew in self.crews.values()]
        facts = self.facts
        epochs = len(set(self.epochs))
        return Totals(self.starts, epochs, facts.counts, models, facts.shift_ms_max)

    def find(self) -> list[str]:
        """Return what readers and workers have found wrong so far."""
        return [*self.facts.findings, *self.stage.board.wrong()]

    def _count_starts(self) -> list[str]:
        """Count the workers of rounds that are new since the last count."""
        for name, crew in self.crews.items():
            if self._seen.get(name) != crew.model.round and crew.model.is_open:
                self._seen[name] = crew.model.round
                self.starts += len(crew.workers())
        found = self.stage.board.count_starts()
        return [] if found == self.starts else [f"{found} workers started, not {self.starts}"]

    def crash(self, *, kills: bool = True) -> None:
        """Do something to jobs, and kill the coordinator at a random moment of it."""
        crash = Crash(self._aim())
        self.crashes.append(crash)
        moment = MOMENTS[crash.aim]
        free = [name for name in self.crews if name not in (moment.job, "steady")]
        idle: list[str] = []
        for name in free:
            (idle if self.chance.random() >= OTHERS else crash.done).append(name)
        crash.done = [self._act(name) for name in crash.done]
        if moment.job:
            crash.done.append(self._act(moment.job, moment.action))
            if moment.joins:
                self.crews[moment.job].await_join()
        time.sleep(self.chance.uniform(*moment.within_s))
        if not kills:
            return
        self._kill(crash)
        self._stay_away(crash, idle)
        self._restart(crash)

    def _aim(self) -> str:
        """Return the moment that is possible now and was least often aimed at."""
        counts = Counter(crash.aim for crash in self.crashes)
        possible = [
            aim
            for aim, moment in MOMENTS.items()
            if not moment.job or moment.action in self.crews[moment.job].actions()
        ]
        fewest = min(counts[aim] for aim in possible)
        return self.chance.choice([aim for aim in possible if counts[aim] == fewest])

    def _act(self, job: str, action: str = "") -> str:
        actions = self.crews[job].actions()
        return actions[action or self.chance.choice(sorted(actions))]()

    def _kill(self, crash: Crash) -> None:
        self.lives.kill(in_append=crash.aim == "inside an append")
        crash.rss_mb = self.lives.all[-1].rss_mb
        crash.journal_bytes = self.lives.disk.size()
        remains = self.lives.disk.look()
        crash.is_in_append, crash.phases = remains.is_cut, list(remains.phases)

    def _stay_away(self, crash: Crash, idle: list[str]) -> None:
        """Wait, and do something to jobs meanwhile."""
        crash.away_s = self.chance.uniform(0, self.longest_s)
        end_s = time.monotonic() + crash.away_s
        failing = self.crews["failing"]
        assert isinstance(failing, Failing)
        for name in idle:
            if self.chance.random() >= OTHERS:
                continue
            if name == "failing" and crash.away_s > 1:
                crash.done.append(f"{failing.fail_two()} meanwhile")
            else:
                crash.done.append(f"{self._act(name)} meanwhile")
        time.sleep(max(0.0, end_s - time.monotonic()))

    def _restart(self, crash: Crash) -> None:
        agents = [agent for crew in self.crews.values() for agent in crew.expected_agents()]
        life = self.lives.start()
        if self.chance.random() < AGAIN:
            time.sleep(self.chance.uniform(0, 2))
            again = Crash("agents returning", ["nothing"])
            self.crashes.append(again)
            self._kill(again)
            life = self.lives.start()
        self.lives.await_listening()
        crash.listening_s = life.listening_s - life.began_s
        missing = dict(agents)
        while missing:
            if time.monotonic() > life.began_s + LIMIT_S:
                raise MeasurementFailed(f"{sorted(missing)} are not attached")
            attached = self._attached()
            for name, process in list(missing.items()):
                if name in attached:
                    crash.attached_s.append(time.monotonic() - life.began_s)
                if name in attached or process.popen.poll() is not None:
                    del missing[name]
            time.sleep(POLL_S)

    def _attached(self) -> set[str]:
        ids = [job_id for job_id, crew in self.crews.items() if crew.model.run]
        jobs = [self.stage.client.get_job(job_id).job for job_id in ids]
        return {node.name for job in jobs for node in job.nodes if node.attached}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Kill the coordinator at every kind of moment.")
    parser.add_argument("--crashes", type=int, default=100, help="default: 100")
    parser.add_argument("--agents", type=int, default=16, help="default: 16, in four jobs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", help="as of the coordinator; default: sqlite in a new folder")
    parser.add_argument("--quick", action="store_true", help="3 crashes of 8 agents")
    parser.add_argument("--calm", action="store_true", help="kill nothing: checks the model alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every crash here")
    arguments = parser.parse_args()
    arguments.away = 1.0 if arguments.quick else AWAY_S_MAX
    if arguments.quick:
        arguments.crashes, arguments.agents = 3, 8
    if arguments.agents < 8 or arguments.crashes < 1:
        parser.error("needs 8 agents and a crash")
    return arguments


def run(arguments: argparse.Namespace, state: str) -> tuple[Play, str]:
    """Crash as often as was asked for; return why it ended too early, if it did."""
    with ExitStack() as stack:
        play = Play(stack, arguments, state)
        try:
            play.open()
            while len(play.crashes) < arguments.crashes:
                play.crash(kills=not arguments.calm)
                play.settle()
                print(f"{len(play.crashes)}: {play.crashes[-1]}", file=sys.stderr, flush=True)
        except (MeasurementFailed, errors.RallypointError) as error:
            why = (
                f"after {len(play.crashes)} crashes, the last of them {play.crashes[-1:]}:\n{error}"
            )
            logs = play.trial.folder.glob("*coordinator.log")
            for log in sorted(logs, key=lambda one: one.stat().st_mtime)[-2:]:
                why += f"\n--- {log.stem}\n{log.read_text()[-8000:]}"
            return play, why
        return play, ""


def main() -> int:
    """Crash, and print the table."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="crashes-") as folder:
        state: str | None = arguments.state
        if state is None:
            state = f"sqlite:{folder}/journal/journal.sqlite"
        play, why = run(arguments, state)
    report = {
        **describe_machine(),
        "date": began.isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
    }
    if arguments.json is not None:
        found = {**report, "crashes": [asdict(crash) for crash in play.crashes], "failure": why}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    if why:
        print(why, file=sys.stderr)
        return 1
    print("\n".join(f"- {name}: {value}" for name, value in report.items()))
    print(f"\n{render(play.crashes, play.totals())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
