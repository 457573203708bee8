"""What the demonstration has seen so far, and how it waits for more.

There are two sources: the lines that workers print, and the job, which JobService sends after every
change. Both are shown to the reader as they arrive.
"""

from __future__ import annotations

import asyncio
import re
import textwrap
import time
from collections.abc import Callable

import grpc

from demo_processes import DemoFailed
from demo_rounds import Stint, reason_words
from rallypoint.v1 import job_pb2, round_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.wire.channel import client_options

# Longest wait for one event. Four workers that import torch on two busy cores take ten seconds.
WAIT_LIMIT_S = 45.0
WIDTH = 80
INDENT = 10
"""Columns of the time."""

# What train_digits.py writes.
STARTED = re.compile(r"started rank=(\d+) world_size=(\d+) restart=\d+ epoch=\d+ step=(\d+)$")
STEP = re.compile(r"epoch=\d+ step=(\d+) loss=\S+$")
EPOCH = re.compile(r"epoch=\d+ loss=\S+ accuracy=\S+$")
ACCURACY = re.compile(r"test accuracy (\S+) after ")

TOLD_WAITS = frozenset(
    {
        job_pb2.WAIT_KIND_REATTACH,
        job_pb2.WAIT_KIND_NODES,
        job_pb2.WAIT_KIND_LAST_CALL,
        job_pb2.WAIT_KIND_RETURNING,
        job_pb2.WAIT_KIND_GROWTH,
    }
)
"""Waits that are worth a line; all others last milliseconds."""


def describe_end(job: job_pb2.Job) -> str:
    """Return how a job ended, and why if it did not succeed."""
    text = f"the job {job_pb2.Outcome.Name(job.outcome).removeprefix('OUTCOME_').lower()}"
    has_succeeded = job.outcome == job_pb2.OUTCOME_SUCCEEDED
    return text if has_succeeded else f"{text}: {job.verdict.text or 'no reason given'}"


class Stage:
    """Everything that was seen so far."""

    def __init__(self) -> None:
        """Begin now."""
        self._began_s = time.monotonic()
        self._changed = asyncio.Event()
        self.job = job_pb2.Job()
        """The job, as JobService sent it last."""
        self.watch_has_ended = False
        self.address: str | None = None
        """Where the coordinator listens."""
        self.joined: set[str] = set()
        """Agents that have reached the coordinator, since it was started last."""
        self.stints: list[Stint] = []
        self.accuracy: float | None = None
        self.awaited = ""
        """What `until` waits for, in words."""

    def now_s(self) -> float:
        """Return the seconds since the demonstration began."""
        return time.monotonic() - self._began_s

    def tell(self, text: str) -> None:
        """Print a line with the time; a long one as several, for a terminal of 80 columns."""
        indent = " " * (INDENT + len(text) - len(text.lstrip()))
        line = f"{self.now_s():6.1f} s  {text}"
        print(textwrap.fill(line, WIDTH, subsequent_indent=indent), flush=True)

    async def until(
        self, is_so: Callable[[], bool], what: str, limit_s: float = WAIT_LIMIT_S
    ) -> None:
        """Wait until `is_so()` is true; it is called again after every event.

        Raises:
            DemoFailed: after `limit_s`, or when the job ends first; the text names `what` did not
                happen, such as "node-a came".
        """
        self.awaited = what
        try:
            async with asyncio.timeout(limit_s):
                while not is_so():
                    if self.watch_has_ended:
                        raise DemoFailed(f"before {what}, {describe_end(self.job)}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise DemoFailed(f"{limit_s:g} s went by before {what}") from None

    def is_training(self, stint_count: int, steps: int = 1) -> bool:
        """Return whether training was started this often and has taken `steps` steps since.

        Raises:
            DemoFailed: when it was started more often.
        """
        if len(self.stints) < stint_count:
            return False
        if len(self.stints) > stint_count:
            raise DemoFailed(f"training was started once more after round {stint_count} had begun")
        stint = self.stints[-1]
        return stint.last_step - stint.resumed_step >= steps

    # --- lines of processes ---

    def take_line(self, name: str, line: str) -> None:
        """Take a line from the standard output of a process."""
        self._changed.set()
        if line.startswith("listening on "):
            self.address = line.removeprefix("listening on ")
        elif match := STARTED.match(line):
            self._tell_line(name, line)
            rank, world_size, step = map(int, match.groups())
            if rank == 0:
                self.stints.append(Stint(name, world_size, step, step))
        elif match := STEP.match(line):
            self._take_step(name, line, int(match[1]))
        elif EPOCH.match(line):
            self._tell_line(name, line)
        elif match := ACCURACY.match(line):
            self._tell_line(name, line)
            self.accuracy = float(match[1])

    def take_log(self, name: str, line: str) -> None:
        """Take a line from the standard error of a process: an agent's log, or a worker's."""
        if '"event": "coordinator_reached' in line:  # or coordinator_reached_again
            self.joined.add(name)
            self._changed.set()

    def _take_step(self, name: str, line: str, step: int) -> None:
        # Only rank 0 reports steps. A late line of an earlier rank 0 counts for the earlier
        # stint: each agent's output is in order, and old workers end before new ones start.
        stint = next((s for s in reversed(self.stints) if s.node_name == name), None)
        if stint is None:
            raise DemoFailed(f"{name} reports a step before its rank 0 has started: {line}")
        stint.last_step = step
        if stint.first_step_s is None:
            stint.first_step_s = self.now_s()
            self._tell_line(name, f"{line}  (first step of this round)")

    def _tell_line(self, name: str, line: str) -> None:
        self.tell(f"    {name}: {line}")

    # --- the job, from the coordinator ---

    def lose_coordinator(self) -> None:
        """Expect the coordinator to end and to be started again on the same address."""
        self.address = None
        self.joined.clear()

    async def watch(self, job_id: str) -> None:
        """Follow the job until its end, over a restart of the coordinator that is expected.

        Raises:
            DemoFailed: when the stream breaks otherwise, or ends before the run has its outcome.
        """
        while self.job.phase != job_pb2.JOB_PHASE_CLOSED:
            await self.until(lambda: self.address is not None, "the coordinator listened again")
            assert self.address is not None
            try:
                await self._follow(job_id, self.address)
            except grpc.aio.AioRpcError as error:
                if self.address is not None:
                    text = f"{error.code().name}: {error.details()}"
                    raise DemoFailed(f"WatchJob ended with {text}") from error
        self.watch_has_ended = True
        self._changed.set()

    async def _follow(self, job_id: str, address: str) -> None:
        async with grpc.aio.insecure_channel(address, options=client_options()) as channel:
            request = service_pb2.WatchJobRequest(job_id=job_id)
            async for response in service_grpc.JobServiceStub(channel).WatchJob(request):
                self._take_job(response.job)
        if self.job.phase != job_pb2.JOB_PHASE_CLOSED:
            raise DemoFailed("WatchJob ended before the job did")

    def _take_job(self, job: job_pb2.Job) -> None:
        before, self.job = self.job, job
        for summary in job.history[len(before.history) :]:
            self._tell_end(summary)
        if job.HasField("round") and job.round.header.number != before.round.header.number:
            self._tell_begin(job.round)
        if job.waiting.kind != before.waiting.kind and job.waiting.kind in TOLD_WAITS:
            self._tell_line("coordinator", f"waiting: {job.waiting.text}")
        self._changed.set()

    def _tell_end(self, summary: job_pb2.RoundSummary) -> None:
        self.tell(f"round {summary.number} has ended: {reason_words(summary.end_reason)}")
        verdict = self.job.verdict
        if verdict.round == summary.number and verdict.text:
            self._tell_line("coordinator", verdict.text)

    def _tell_begin(self, round: round_pb2.Round) -> None:
        header = round.header
        names = ", ".join(member.node_name for member in round.members)
        self.tell(
            f"round {header.number} begins ({reason_words(header.reason)}): {names}, "
            f"{header.world_size} workers, restarts: {header.restart_count}"
        )
