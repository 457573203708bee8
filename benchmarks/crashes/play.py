"""The jobs, the readers that follow them, and the comparison of both with what was done.

A difference is noted and ends nothing: the model takes over what is shown, so that it is found
once, and the next crash is compared with that. A job that does not come to rest is left alone.
"""

from __future__ import annotations

import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict

from crashes.board import Board
from crashes.crew import Crew, Stage
from crashes.facts import Facts
from crashes.figures import Crash
from crashes.readers import EventReader, JobReader, JobsReader, KeyReader, Poller, Reader
from harness.results import Results
from harness.trial import MeasurementFailed, Trial
from rallypoint.client import Client, errors

LIMIT_S = 60.0
LOG_CHARS = 8_000
AGENT_LINES = 12
TOGETHER = 8
"""Jobs that start at once."""
CALLS = 8
"""Requests under way at once."""


class Play(ABC):
    """Jobs, readers, and what was found wrong."""

    def __init__(
        self,
        stack: ExitStack,
        trial: Trial,
        addresses: Sequence[str],
        seed: int,
        jobs: list[str],
        shards: int = 0,
    ) -> None:
        """Prepare; `crews` has to be filled for the same jobs.

        Args:
            stack: closes everything.
            trial: starts processes.
            addresses: of the coordinators.
            seed: of what is done, and when.
            jobs: their ids.
            shards: of the store; 0: one coordinator is alone.
        """
        self.stack = stack
        self.trial = trial
        self.chance = random.Random(seed)
        self.facts = Facts()
        self.crews: dict[str, Crew] = {}
        self.crashes: list[Crash] = []
        self._added = 0
        self.failures: list[str] = []
        """What differed, each with when."""
        self.began_s = time.monotonic()
        self._epochs: dict[Hashable, int] = {}
        self.epochs = 0
        """How many were seen."""
        board = Board(trial.folder)
        stack.callback(board.close)
        pool = stack.enter_context(ThreadPoolExecutor(CALLS))
        # Each begins with another one.
        self._targets = [
            ",".join((*addresses[at:], *addresses[:at])) for at in range(len(addresses))
        ]
        every, last = self._targets[0], self._targets[-1]
        client = stack.enter_context(Client(every))
        facts = self.facts
        readers = {
            name: JobReader(self._targets[at % len(addresses)], facts, name)
            for at, name in enumerate(jobs)
        }
        self.stage = Stage(trial, every, board, client, readers, self.chance, pool)
        self.events = EventReader("WatchEvents", every, facts, shards=shards)
        self.poller = Poller(last, facts, jobs, seed)
        self._others: list[Reader] = [JobsReader("WatchJobs", last, facts)]

    @property
    def count(self) -> int:
        """Crashes so far."""
        return len(self.crashes)

    @abstractmethod
    def crash(self, *, kills: bool = True) -> None:
        """Do something to jobs, and let a coordinator crash at a random moment of it."""

    @abstractmethod
    def recover(self) -> None:
        """Start what has ended, after a crash that went wrong."""

    @abstractmethod
    def describe_last(self) -> str:
        """Return the last crash in one line."""

    def add_crashes(self, results: Results) -> None:
        """Add the crashes since the last call."""
        for crash in self.crashes[self._added :]:
            crash.add_to(results)
            results.cases.append(asdict(crash))
        self._added = self.count

    def finish(self) -> None:  # noqa: B027  # most have nothing more
        """Do what comes after all crashes."""

    def open(self) -> None:
        """Start readers and agents, and wait until everything runs."""
        for reader in (*self.stage.readers.values(), self.events, *self._others, self.poller):
            self.follow(reader)
        crews = list(self.crews.values())
        for at in range(0, len(crews), TOGETHER):
            for crew in crews[at : at + TOGETHER]:
                crew.open()
            for crew in crews[at : at + TOGETHER]:
                crew.settle()
        self.settle("the start")
        for name, crew in self.crews.items():
            if "shares" in crew.manner:
                token = crew.workers()[0].token
                self.follow(KeyReader(self._targets[0], self.facts, name, token))

    def follow(self, reader: Reader) -> None:
        """Start a reader, and close it at the end."""
        self.stack.callback(reader.close)
        reader.start()

    def settle(self, when: str) -> None:
        """Wait for the consequences of everything; compare, and note what differs."""
        for crew in self.living():
            try:
                crew.settle()
            except (MeasurementFailed, errors.RallypointError) as error:
                crew.is_stuck = True
                self.note(when, f"{crew.job_id} is left alone from now on: {error}")
        for crew in self.living():
            try:
                wrong = crew.compare()
                if wrong:
                    self._show_agents(crew)
                    crew.adopt()
            except errors.RallypointError as error:
                wrong = [f"{crew.job_id} cannot be read: {error}"]
            self.note(when, *wrong, *crew.count_starts())
        try:
            self._compare_epochs(when)
            self.poller.compare_events(self.events, LIMIT_S)
        except errors.RallypointError as error:
            self.note(when, f"events or epochs cannot be read: {error}")
        self.note(when, *self.facts.take(), *self.stage.board.take_wrong())

    def _show_agents(self, crew: Crew) -> None:
        """Print the last lines of the agents of a job."""
        for name, process in crew.agents.items():
            lines = self.trial.log(process).read_text(errors="replace").splitlines()
            own = [line for line in lines if " is at step " not in line]
            print(f"--- {name}", *own[-AGENT_LINES:], sep="\n", file=sys.stderr, flush=True)

    def note(self, when: str, *wrong: str) -> None:
        """Note what differs, and print it at once."""
        for text in wrong:
            self.failures.append(f"{when}: {text}")
            print(f"DIFFERS after {self.failures[-1]}", file=sys.stderr, flush=True)

    def living(self) -> list[Crew]:
        """Return the crews whose jobs have come to rest each time."""
        return [crew for crew in self.crews.values() if not crew.is_stuck]

    def tail_logs(self) -> list[str]:
        """Return the ends of the logs of the last two coordinators."""
        logs = self.trial.folder.glob("*coordinator.log")
        latest = sorted(logs, key=lambda one: one.stat().st_mtime)[-2:]
        return [f"--- {log.stem}\n{log.read_text()[-LOG_CHARS:]}" for log in latest]

    def passed_s(self) -> float:
        """Return how long this has run."""
        return time.monotonic() - self.began_s

    def add_totals(self, results: Results) -> None:
        """Add what all crashes together amount to."""
        crews, models = self.crews.values(), [crew.model for crew in self.crews.values()]
        ended = [one for model in models for one in model.ended]
        for column, count in {
            "workers started": sum(crew.starts for crew in crews),
            "restarted without an injected failure": sum(crew.extra for crew in crews),
            "rounds ended": len(ended),
            "runs ended": sum(len(model.runs) for model in models),
            "restarts charged": sum(one.end == "WORKER_FAILED" for one in ended),
            "answers taken back": self.facts.found,
            "ms that a time of day has moved at most": self.facts.shift_ms_max,
            "epochs, each higher than the one before": self.epochs,
            "differences": len(self.failures),
        }.items():
            results.count("totals", "all crashes", column, count)
        for kind, count in sorted(self.facts.counts.items()):
            results.count("answers that were read", kind, "times", count)

    def _compare_epochs(self, when: str) -> None:
        shown = self.stage.client.get_coordinator().coordinator
        served = {shard.number: shard.epoch for shard in shown.shards if shard.served}
        epochs = served or {-1: shown.epoch}
        for shard, epoch in epochs.items():
            before = self._epochs.get(shard, 0)
            if epoch < before:
                self.note(when, f"epoch {epoch} after {before}, of shard {shard}")
            self.epochs += epoch > before
            self._epochs[shard] = epoch

    def act(self, job: str, action: str = "") -> str:
        """Do something to a job, by chance if nothing is named; return what."""
        actions = self.crews[job].actions()
        return actions[action or self.chance.choice(sorted(actions))]()
