"""One job with its agents: what is done to it, and what must have become of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crashes.board import Board, Start
from crashes.model import Blame, Model
from crashes.readers import JobReader
from harness.trial import MeasurementFailed, Process, Trial
from rallypoint.client import Client
from rallypoint.v1 import job_pb2

WORKERS = 2
"""On each node."""
LIMIT_S = 60.0
"""Longest wait for anything."""
PATIENT = ["--join-timeout", "600", "--outcome-timeout", "600", "--last-call", "60"]
MANY = "100000"
FLAGS = [
    *("--max-reformations", MANY, "--restart-backoff", "0", "--crash-loop", "0"),
    *("--quarantine-after", "1000", "--quarantine-window", "86400"),
    *("--settle-time", "0.5", "--grow-after", "0", "--shutdown-timeout", "10"),
]


@dataclass(slots=True)
class Stage:
    """What all jobs share."""

    trial: Trial
    address: str
    """`host:port` of every coordinator, for agents."""
    board: Board
    client: Client
    readers: dict[str, JobReader]
    chance: random.Random
    pool: ThreadPoolExecutor


@dataclass
class Crew:
    """A job: its agents, its model, and what may be injected."""

    stage: Stage
    job_id: str
    size: int
    """Most nodes."""
    min_size: int
    max_restarts: str = MANY
    manner: tuple[str, ...] = ()
    """Arguments of its workers."""
    model: Model = field(default_factory=Model)
    agents: dict[str, Process] = field(default_factory=dict)
    """Agents that live, by node name."""
    leaving: dict[str, tuple[Process, int]] = field(default_factory=dict)
    """Agents that end now, each with the exit code that is right."""
    calls: list[Future[Any]] = field(default_factory=list)
    """Requests that are not answered yet."""
    count: int = 0
    """Agents that were started."""
    is_stuck: bool = False
    """It did not come to rest, and is left alone."""
    starts: int = 0
    """Workers that had to be started."""
    extra: int = 0
    """Workers that were started without a reason."""
    seen: int = 0
    """Round whose workers were counted last."""

    # --- What may be injected; each returns what was done. -----------------------------------

    def actions(self) -> dict[str, Callable[[], str]]:
        """Return what can be done to the job now, by name."""
        raise NotImplementedError

    def start_agent(self) -> str:
        """Start one more agent; return its name."""
        self.count += 1
        name = f"{self.job_id}{self.count}"
        where = ["--coordinator", self.stage.address, "--job-id", self.job_id]
        nodes = ["--nnodes", f"{self.min_size}:{self.size}", "--nproc-per-node", str(WORKERS)]
        flags = [*FLAGS, *PATIENT, "--max-restarts", self.max_restarts]
        flags += ["--node-name", name, "--local-addr", "127.0.0.1"]
        script = [str(Path(__file__).with_name("worker.py")), str(self.stage.board.path)]
        command = ["node-agent", *where, *nodes, *flags, *script, *self.manner]
        self.agents[name] = self.stage.trial.start(command)
        return name

    def open(self) -> str:
        """Start the agents of a run."""
        self.model.open_run(tuple(sorted(self.start_agent() for _ in range(self.size))))
        return f"{self.size} agents start"

    def is_steady(self) -> bool:
        """Return whether its workers may never stop."""
        return False

    def pick(self) -> Start:
        """Return a random worker of the round that runs."""
        return self.stage.chance.choice(self.workers())

    def workers(self) -> list[Start]:
        """Return the workers of the round that runs, by rank."""
        return self.stage.board.starts(self.job_id, self.model.round)

    def fail(self, worker: Start) -> Blame:
        """Let a worker fail; return what the verdict must say."""
        is_killed = self.stage.chance.random() < 0.5
        code = self.stage.chance.choice((1, self.stage.chance.randint(2, 50)))
        self.stage.board.say(worker, "die" if is_killed else f"exit {code}")
        end = "signal 9" if is_killed else f"exit {code}"
        return Blame("WORKER_FAILED", worker.node, "RESTARTED", worker.rank, end)

    def call(self, request: Callable[[], Any]) -> None:
        """Make a request that a crash may interrupt."""
        self.calls.append(self.stage.pool.submit(request))

    def dismiss(self, names: tuple[str, ...], code: int) -> None:
        """Note that agents end now with this exit code."""
        for name in names:
            self.leaving[name] = self.agents.pop(name), code

    # --- What must have become of it ------------------------------------------------------------

    def settle(self) -> None:
        """Wait until everything that was injected has had its consequences.

        Raises: MeasurementFailed when that takes too long.
        """
        end_s = time.monotonic() + LIMIT_S
        for call in self.calls:
            call.result(max(0.1, end_s - time.monotonic()))
        self.calls.clear()
        for name, (process, code) in self.leaving.items():
            try:
                found = process.popen.wait(max(0.1, end_s - time.monotonic()))
            except Exception as error:
                raise MeasurementFailed(f"agent {name} still lives") from error
            if found != code:
                raise MeasurementFailed(f"agent {name} exited with {found} instead of {code}")
        self.leaving.clear()
        if self.model.is_open:
            count = len(self.model.members) * WORKERS
            self.stage.board.await_starts(
                self.job_id, self.model.round, count, max(0.1, end_s - time.monotonic())
            )
        self._await(self._is_settled, end_s)

    def await_join(self) -> None:
        """Wait until a node has joined that the round does not have, or is in the next one: a
        watch need not show what lies between."""

        def has_joined(job: job_pb2.Job) -> bool:
            members = {member.node_name for member in job.round.members}
            nodes = {node.name for node in job.nodes}
            is_formed = job.round.header.number >= self.model.round
            return job.run == self.model.run and (is_formed or bool(nodes - members))

        self._await(has_joined, time.monotonic() + LIMIT_S)

    def _await(self, is_reached: Callable[[job_pb2.Job], bool], end_s: float) -> None:
        reader = self.stage.readers[self.job_id]
        while not is_reached(reader.job):
            if time.monotonic() > end_s:
                raise MeasurementFailed(f"{self.model}\nwas not reached: {reader.job}")
            time.sleep(0.02)

    def _is_settled(self, job: job_pb2.Job) -> bool:
        if not self.model.run:
            return True
        if not self.model.is_open:
            return job.run == self.model.run and job.HasField("closed_at") and not job.nodes
        is_running = job.phase == job_pb2.JOB_PHASE_RUNNING
        is_started = is_running and job.round.HasField("started_after")
        # A coordinator that has just begun shows workers once their agents have reported them.
        waits = job.waiting.kind not in (job_pb2.WAIT_KIND_UNSPECIFIED, job_pb2.WAIT_KIND_BARRIER)
        is_whole = len(job.nodes) == len(self.model.members) and not waits
        is_whole = is_whole and all(node.attached for node in job.nodes)
        return is_started and job.round.header.number >= self.model.round and is_whole

    def compare(self) -> list[str]:
        """Return what is not as it must be, once it has settled."""
        if not self.model.run:
            return []
        client = self.stage.client
        job = self._read_settled()
        rounds = list(client.list_rounds(self.job_id))
        wrong = self.model.compare(job, rounds, list(client.list_runs(self.job_id)))
        for name, process in self.agents.items():
            if process.popen.poll() is not None:
                wrong.append(f"agent {name} has ended with {process.popen.returncode}")
        if self.model.is_open:
            wrong += self._compare_workers(job)
        return wrong

    def _read_settled(self) -> job_pb2.Job:
        """Return the job as its coordinator shows it. The watch may be behind: it may not know yet
        that another coordinator serves the job, which agents have still to find."""
        end_s = time.monotonic() + LIMIT_S
        while not self._is_settled(job := self.stage.client.get_job(self.job_id).job):
            if time.monotonic() > end_s:
                raise MeasurementFailed(f"{self.model}\nwas not reached: {job}")
            time.sleep(0.05)
        return job

    def adopt(self) -> None:
        """Let the model take over what the job shows, so that a difference is found only once."""
        client = self.stage.client
        job = client.get_job(self.job_id).job
        rounds, runs = list(client.list_rounds(self.job_id)), list(client.list_runs(self.job_id))
        self.model.adopt(job, rounds, runs)

    def count_starts(self) -> list[str]:
        """Count the workers of a round that is new since the last count; compare."""
        if self.model.is_open and self.seen != self.model.round:
            self.seen = self.model.round
            self.starts += len(self.workers())
        expected, found = self.starts, self.stage.board.count_starts(self.job_id)
        self.starts = found
        self.extra += max(0, found - expected)
        if found == expected:
            return []
        return [f"{self.job_id}: {found} workers have started, not {expected}"]

    def _compare_workers(self, job: job_pb2.Job) -> list[str]:
        """Compare the workers that have started with those that the job shows."""
        started = [(one.node, one.rank, one.pid, one.restarts) for one in self.workers()]
        shown = [
            (node.name, worker.rank, worker.pid, self.model.restarts)
            for node in job.nodes
            for worker in node.workers
        ]
        shown.sort(key=lambda one: one[1])
        if started == shown:
            return []
        return [f"{self.job_id}: workers {started} have started, and the job shows {shown}"]

    def expected_agents(self) -> list[tuple[str, Process]]:
        """Return the agents that a new coordinator has to find again."""
        shown = {node.name for node in self.stage.readers[self.job_id].job.nodes if node.attached}
        return [(name, process) for name, process in self.agents.items() if name in shown]
