"""Readers that watch and list everything over all crashes, and note what is taken back."""

from __future__ import annotations

import random
import threading
import time
from abc import abstractmethod

from crashes.facts import Facts, Place
from rallypoint.client import Client, Scope, errors
from rallypoint.server.core.model.events import EVENTS_PER_JOB_MAX
from rallypoint.server.core.model.shards import shard_of
from rallypoint.v1 import job_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2

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
                try:
                    self.read()
                except errors.Unavailable:
                    self.facts.count("calls without a coordinator")
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
    """Follows the events of all jobs in one watch. Each shard numbers its events."""

    def __init__(self, name: str, address: str, facts: Facts, *, shards: int = 0) -> None:
        """Prepare; `shards`: how many there are, 0 for a coordinator that is alone."""
        super().__init__(name, address, facts)
        self._shards = shards
        self.last: dict[int, int] = {}
        """Sequence of the latest of each shard."""
        self.seen: dict[str, set[int]] = {}
        """Sequences of all events, by job."""
        self._epochs: dict[int, int] = {}

    def shard(self, job_id: str) -> int:
        """Return what numbers the events of a job."""
        return shard_of(job_id, self._shards) if self._shards else 0

    def read(self) -> None:
        rounds: dict[str, tuple[int, int]] = {}
        # A new watch of several shards begins with the oldest events, which are the same again.
        after = 0 if self._shards else self.last.get(0, 0)
        sent = dict.fromkeys(range(self._shards), 0) if self._shards else dict(self.last)
        with self.client.watch_events(after=after) as events:
            for event in events:
                shard = self.shard(event.job_id)
                before, epoch = sent.get(shard, 0), self._epochs.get(shard, 0)
                is_news = event.sequence > self.last.get(shard, 0)
                if event.sequence <= before or (is_news and event.epoch < epoch):
                    self.facts.find(f"{self.name}: after {before} of {epoch}: {event}")
                place = (event.run, event.round)
                if place < rounds.get(event.job_id, (0, 0)):
                    self.facts.find(f"{self.name}: after {rounds[event.job_id]}: {event}")
                rounds[event.job_id] = place
                sequence, epoch = event.sequence, event.epoch
                self.facts.see_event(event, self.name)
                self.facts.count("events")
                self.seen.setdefault(event.job_id, set()).add(sequence)
                sent[shard] = sequence
                if is_news:
                    self.last[shard], self._epochs[shard] = sequence, epoch

    def wait_for(self, sequences: dict[int, int], limit_s: float) -> None:
        """Wait until these events of the shards were read."""
        end_s = time.monotonic() + limit_s
        for shard, sequence in sequences.items():
            while self.last.get(shard, 0) < sequence:
                if time.monotonic() > end_s:
                    last = self.last.get(shard, 0)
                    self.facts.find(f"{self.name}: {last} is the last, instead of {sequence}")
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

    def compare_events(self, watched: EventReader, limit_s: float) -> None:
        """List all events: none that was seen is missing or changed, and the watch has them all."""
        listed: dict[str, list[int]] = {}
        until: dict[int, int] = {}
        for event in self.client.list_events():
            listed.setdefault(event.job_id, []).append(event.sequence)
            shard = watched.shard(event.job_id)
            until[shard] = max(until.get(shard, 0), event.sequence)
            self.facts.see_event(event, "ListEvents")
        watched.wait_for(until, limit_s)
        known: dict[str, set[int]] = {}
        for _, number, job_id in self.facts.known("event"):
            known.setdefault(str(job_id), set()).add(int(str(number)))
        for job_id, numbers in known.items():
            # Later ones came while the list was read.
            old = [number for number in numbers if number <= until.get(watched.shard(job_id), 0)]
            lost = [number for number in old if _is_lost(number, listed.get(job_id, []))]
            if lost:
                self.facts.find(f"ListEvents: {job_id} has lost {sorted(lost)[:20]}")
        for job_id, sequences in listed.items():
            if missed := set(sequences) - watched.seen.get(job_id, set()):
                self.facts.find(f"{watched.name}: {job_id} lacks {sorted(missed)[:20]}")


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
        self._header = keys_pb2.KeyValueHeader()
        """Of the latest change."""
        self._values: dict[str, int] = {}

    def read(self) -> None:
        if not self._header.epoch:
            listed = self.client.list_keys(self._job_id, keys_only=True, scope=Scope.RUN)
            list(listed)
            self._header.CopyFrom(listed.first.header)
        # The client gives an outage up after 30 s. Then the next watch begins where this one ended.
        with self.client.watch_keys(self._job_id, after=self._header, scope=Scope.RUN) as events:
            for event in events:
                self.facts.count("changes of keys")
                value, kv = int(event.kv.value or b"0"), event.kv
                if kv.mod_revision <= self._header.revision:
                    self.facts.find(f"{self.name}: {kv} after revision {self._header.revision}")
                if value != self._values.get(kv.key, value - 1) + 1:
                    self.facts.find(f"{self.name}: {self._values.get(kv.key)} and then {kv}")
                self._header.revision, self._values[kv.key] = kv.mod_revision, value
