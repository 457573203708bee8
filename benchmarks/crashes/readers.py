"""Readers that watch and list everything over all crashes, and note what is taken back."""

from __future__ import annotations

import random
import threading
import time
from abc import abstractmethod

from crashes.facts import Facts, Place
from rallypoint.client import Client, Scope, errors
from rallypoint.server.core.events.log import EVENTS_PER_JOB_MAX
from rallypoint.v1 import job_pb2

PAUSE_S = 0.2
"""Time between two polls."""
POLL_S = 0.02


class Reader(threading.Thread):
    """A thread with a client, until it is closed."""

    def __init__(self, name: str, address: str, facts: Facts, *, token: str = "") -> None:
        super().__init__(name=name)
        self.client = Client(address, token=token)
        self.facts = facts
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.read()
        except errors.ClientClosed:
            pass
        except Exception as error:  # noqa: BLE001  # the root of the thread
            self.facts.find(f"{self.name}: {type(error).__name__}: {error}")

    @abstractmethod
    def read(self) -> None:
        """Read until there is nothing more."""

    def close(self) -> None:
        """End it."""
        self.stopping.set()
        self.client.close()
        self.join()


class EventReader(Reader):
    """Follows the events of all jobs in one watch."""

    last = 0
    """Sequence of the latest."""
    epoch = 0

    def read(self) -> None:
        rounds: dict[str, tuple[int, int]] = {}
        with self.client.watch_events(after=self.last) as events:
            for event in events:
                place = (event.run, event.round)
                if event.sequence <= self.last or event.epoch < self.epoch:
                    self.facts.find(f"{self.name}: after {self.last} of {self.epoch}: {event}")
                if place < rounds.get(event.job_id, (0, 0)):
                    self.facts.find(f"{self.name}: after {rounds[event.job_id]}: {event}")
                rounds[event.job_id] = place
                self.facts.see_event(event, self.name)
                self.facts.count("events")
                self.last, self.epoch = event.sequence, event.epoch

    def wait_for(self, sequence: int, limit_s: float) -> None:
        """Wait until an event was read, if there is one that late."""
        end_s = time.monotonic() + limit_s
        while self.last < sequence:
            if time.monotonic() > end_s:
                self.facts.find(f"{self.name}: {self.last} is the last, instead of {sequence}")
                return
            time.sleep(POLL_S)


class JobReader(Reader):
    """Watches one job over all its runs. `job` is its latest state."""

    def __init__(self, address: str, facts: Facts, job_id: str) -> None:
        super().__init__(f"WatchJob {job_id}", address, facts)
        self.job_id = job_id
        self.job = job_pb2.Job()
        self._place = Place(facts, self.name)

    def read(self) -> None:
        after = self._place.revision
        with self.client.watch_job(self.job_id, after=after, across_runs=True) as answers:
            for answer in answers:
                self.facts.count("WatchJob")
                if answer.missing:
                    self._place.miss()
                    continue
                if answer.revision <= self._place.revision:
                    self.facts.find(f"{self.name}: revision {answer.revision} comes twice")
                self._place.move(answer.job)
                self.facts.see_job(answer.job, self.name)
                self.job = answer.job


class JobsReader(Reader):
    """Watches all jobs: after a restart nothing is missing, so it never has to list them again."""

    revision = 0

    def read(self) -> None:
        latest: dict[str, tuple[int, int, int]] = {}
        with self.client.watch_jobs(after=self.revision) as answers:
            for answer in answers:
                self.facts.count("WatchJobs")
                if answer.revision < self.revision or answer.deleted_job_ids:
                    self.facts.find(f"{self.name}: after {self.revision}: {answer}")
                for job in answer.jobs:
                    place = (job.run, job.round, job.revision)
                    if place < latest.get(job.job_id, (0, 0, 0)):
                        self.facts.find(f"{self.name}: after {latest[job.job_id]}: {job}")
                    latest[job.job_id] = place
                self.revision = answer.revision


class Poller(Reader):
    """Reads jobs, rounds, runs and events again and again."""

    def __init__(self, address: str, facts: Facts, job_ids: list[str], seed: int) -> None:
        super().__init__("poller", address, facts)
        self._chance = random.Random(seed)
        self._places = {job_id: Place(facts, f"GetJob {job_id}") for job_id in job_ids}
        self._first_event = 0

    def read(self) -> None:
        job_id, place = self._chance.choice(sorted(self._places.items()))
        try:
            job = self.client.get_job(job_id).job
            place.move(job)
            self.facts.see_job(job, place.source)
            self.facts.see_rounds(job_id, list(self.client.list_rounds(job_id)), "ListRounds")
            self.facts.see_runs(job_id, list(self.client.list_runs(job_id)), "ListRuns")
            self.facts.count("GetJob, ListRounds, ListRuns")
        except errors.UnknownJob:
            place.miss()
        self.stopping.wait(PAUSE_S)

    def compare_events(self, until: int) -> None:
        """List all events, up to one that was seen: none that was seen is missing or changed."""
        listed: dict[str, list[int]] = {}
        for event in self.client.list_events():
            listed.setdefault(event.job_id, []).append(event.sequence)
            if event.sequence <= until:
                self.facts.see_event(event, "ListEvents")
        known = [(str(job_id), int(str(number))) for _, number, job_id in self.facts.known("event")]
        lost = [number for job_id, number in known if _is_lost(number, listed.get(job_id, []))]
        if missing := [number for number in lost if number <= until]:
            self.facts.find(f"ListEvents: lost {sorted(missing)[:20]}")
        news = {number for numbers in listed.values() for number in numbers if number <= until}
        if extra := news - {number for _, number in known}:
            self.facts.find(f"ListEvents: a watch has missed {sorted(extra)[:20]}")


def _is_lost(number: int, listed: list[int]) -> bool:
    """Return whether an event is missing among its job's, which drops the oldest at the limit."""
    if len(listed) >= EVENTS_PER_JOB_MAX and number < listed[0]:
        return False
    return number not in listed


class KeyReader(Reader):
    """Watches the keys of a run, with the token of one of its workers."""

    def __init__(self, address: str, facts: Facts, job_id: str, token: str) -> None:
        super().__init__(f"WatchKeys {job_id}", address, facts, token=token)
        self._job_id = job_id
        self._revision = 0
        self._values: dict[str, int] = {}

    def read(self) -> None:
        with self.client.watch_keys(self._job_id, scope=Scope.RUN) as events:
            for event in events:
                self.facts.count("changes of keys")
                value, kv = int(event.kv.value or b"0"), event.kv
                if kv.mod_revision <= self._revision:
                    self.facts.find(f"{self.name}: {kv} after revision {self._revision}")
                if value != self._values.get(kv.key, value - 1) + 1:
                    self.facts.find(f"{self.name}: {self._values.get(kv.key)} and then {kv}")
                self._revision, self._values[kv.key] = kv.mod_revision, value
