"""What readers have learned for good: nothing of it may be taken back later.

A fact has a name, such as ("round", "steady", 3), and a value that never changes once it was seen:
rounds that have ended, runs that have ended, verdicts whose consequence is decided, events. A
reading has a place that only grows: (run, round) of a job, its revision, the number of an event.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from crashes.model import KEPT_ROUNDS
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import job_pb2, verdict_pb2

FINDINGS_MAX = 50


@dataclass
class Facts:
    """What all readers together have seen. Threads may share it."""

    findings: list[str] = field(default_factory=list)
    """What was taken back, or came in the wrong order."""
    found: int = 0
    """How many findings there were in all."""
    counts: dict[str, int] = field(default_factory=dict)
    """How often each kind of answer was read."""
    shift_ms_max: int = 0
    """How far a time of day that was shown has moved at most."""
    _times: dict[tuple[Hashable, ...], int] = field(default_factory=dict)
    _known: dict[tuple[Hashable, ...], bytes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind: str) -> None:
        """Note that an answer was read."""
        with self._lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1

    def find(self, text: str) -> None:
        """Note something that may not be."""
        with self._lock:
            self.found += 1
            if len(self.findings) < FINDINGS_MAX:
                self.findings.append(text)

    def take(self) -> list[str]:
        """Return what was found since the last call."""
        with self._lock:
            findings, self.findings = self.findings, []
            return findings

    def see_time(self, name: tuple[Hashable, ...], message: Message, field_name: str) -> None:
        """Note a time of day, and remove it; it may be shown a little different later."""
        if not message.HasField(field_name):
            return
        shown: Timestamp = getattr(message, field_name)
        at_ms = shown.ToMilliseconds()
        with self._lock:
            shift_ms = abs(self._times.setdefault((*name, field_name), at_ms) - at_ms)
            self.shift_ms_max = max(self.shift_ms_max, shift_ms)
        message.ClearField(field_name)

    def see(self, name: tuple[Hashable, ...], message: Message, source: str) -> None:
        """Note a fact; it must be as it was seen before."""
        value = message.SerializeToString(deterministic=True)
        with self._lock:
            before = self._known.setdefault(name, value)
        if before != value:
            was = str(type(message).FromString(before)).splitlines()
            changed = difflib.unified_diff(was, str(message).splitlines(), "was", "is", lineterm="")
            self.find("\n".join([f"{source}: {name} has changed", *changed]))

    def known(self, *prefix: Hashable) -> list[tuple[Hashable, ...]]:
        """Return the names of the facts that begin like this, sorted."""
        with self._lock:
            found = [name for name in self._known if name[: len(prefix)] == prefix]
        return sorted(found, key=lambda name: tuple(map(str, name)))

    def see_round(self, job_id: str, round: job_pb2.RoundSummary, source: str) -> None:
        """Note a round that has ended."""
        clear_ages(round.verdict)
        name = ("round", job_id, round.number)
        self.see_time(name, round, "began_at")
        self.see_time(name, round, "ended_at")
        self.see(name, round, source)

    def see_rounds(self, job_id: str, rounds: list[job_pb2.RoundSummary], source: str) -> None:
        """Note all ended rounds that a coordinator remembers: none that was known is missing."""
        for round in rounds:
            self.see_round(job_id, round, source)
        listed = {round.number for round in rounds}
        known = sorted(int(str(name[2])) for name in self.known("round", job_id))
        # Another reader may have learned of later ones meanwhile.
        newest = max(listed, default=0)
        missing = {number for number in known if number <= newest} - listed
        if len(listed) < KEPT_ROUNDS and missing:
            self.find(f"{source}: {job_id} has lost the rounds {sorted(missing)}")

    def see_runs(self, job_id: str, runs: list[job_pb2.RunSummary], source: str) -> None:
        """Note the runs of a job; those that have ended stay as they are."""
        for run in runs:
            if run.HasField("closed_at"):
                clear_ages(run.verdict)
                name = ("run", job_id, run.run)
                self.see_time(name, run, "opened_at")
                self.see_time(name, run, "closed_at")
                self.see(name, run, source)

    def see_job(self, job: job_pb2.Job, source: str) -> None:
        """Note what a job shows for good: decided verdicts, outcomes, ended rounds."""
        for round in job.history:
            self.see_round(job.job_id, round, source)
        decided = verdict_pb2.VERDICT_CONSEQUENCE_UNDECIDED
        if job.HasField("verdict") and job.verdict.consequence != decided:
            clear_ages(job.verdict)
            name = ("verdict", job.job_id, job.run, job.verdict.round)
            self.see(name, job.verdict, source)
        if job.HasField("closed_at"):
            end = job_pb2.RunSummary(run=job.run, outcome=job.outcome)
            self.see(("end", job.job_id, job.run), end, source)

    def see_event(self, event: events_pb2.Event, source: str) -> None:
        """Note an event."""
        self.see_time(("event", event.sequence), event, "time")
        self.see(("event", event.sequence, event.job_id), event, source)


def clear_ages(verdict: verdict_pb2.Verdict) -> None:
    """Remove what grows with time, if it is there."""
    for worker in (verdict.culprit, *verdict.collateral):
        if worker.exit.HasField("age"):
            worker.exit.ClearField("age")


@dataclass
class Place:
    """Where one reader of a job stands: it only moves forward."""

    facts: Facts
    source: str
    revision: int = 0
    run: int = 0
    round: int = 0
    restarts: int = 0
    epoch: int = 0
    exists: bool = False

    def move(self, job: job_pb2.Job) -> None:
        """Take over where a job is now."""
        self.exists = True
        newest = max((one.number for one in job.history), default=job.round.header.number)
        newest = max(newest, job.round.header.number) or self.round  # 0: the run has none yet
        is_same_run = job.run == self.run
        before = f"revision {self.revision}, run {self.run}, round {self.round}, {self.restarts}"
        after = f"revision {job.revision}, run {job.run}, round {newest}, {job.restart_count}"
        if (
            job.revision < self.revision
            or job.run < self.run
            or newest < self.round
            or (is_same_run and job.restart_count < self.restarts)
        ):
            self.facts.find(f"{self.source}: {before} restarts, and then {after} restarts")
        if job.HasField("round"):
            if job.round.header.epoch < self.epoch:
                self.facts.find(f"{self.source}: a round of an earlier epoch after {self.epoch}")
            self.epoch = job.round.header.epoch
        self.revision, self.run, self.round = job.revision, job.run, newest
        self.restarts = job.restart_count

    def miss(self) -> None:
        """Take over that there is no such job."""
        if self.exists:
            self.facts.find(f"{self.source}: the job is gone")
