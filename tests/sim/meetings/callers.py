"""Simulated workers that meet at barriers, as a training script would: one call after the other.

What the workers of a round do is drawn once for all of them: which barriers, of which scope, who is
expected. Each then does it at its own pace, over a network that loses calls and answers. A call
that got no answer is made again, with the same request id. Now and then someone lists the barriers.

Everything here is drawn from separate generators, so the other choices of a seed stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from sim.meetings.plan import Meeting, Speaker, draw_plan, request_of, takes_part

if TYPE_CHECKING:
    from sim.world.process import Group, Process
    from sim.world.world import World

ATTEMPTS_MAX = 6
THINK_MS_MAX = 1_500
LATENCY_MS_MAX = 40
RETRY_MS_MAX = 800
LOOK_MS_MAX = 4_000
"""Pause between two lists of barriers."""
CALL_MS = (1_000, 4_000, 15_000)
"""How long a call may last."""
LOST_PERCENT = 8
"""Of the calls, and of the answers."""
SKIPPED_PERCENT = 3
"""Of the meetings of one worker: the others wait for it in vain."""
ACTIVE_PERCENT = 40
"""Of the seeds."""
AGAIN = frozenset({grpc.StatusCode.UNAVAILABLE.value[0]})
"""After these statuses the same call is made again."""
NEXT = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED.value[0]})
"""After these the worker goes to the next meeting; after any other it has done."""


@dataclass(slots=True, eq=False)
class Call:
    """One attempt of one arrival."""

    caller: Caller
    meeting: Meeting
    request: bytes
    metadata: tuple[tuple[str, str], ...]
    deadline_ms: int
    """Of the call, by the clock of the world."""
    is_done: bool = False
    """The caller has its answer, or waits no more."""


class Caller:
    """One worker process that goes from meeting to meeting."""

    def __init__(self, meetings: Meetings, process: Process, plan: tuple[Meeting, ...]) -> None:
        self.meetings = meetings
        self.world = meetings.world
        self.process = process
        self.speaker = Speaker(
            job_id=process.agent.host.plan.job_id,
            rank=process.rank,
            is_first=process.local_rank == 0,
            node=process.agent.name,
            header=process.order.header,
        )
        self._plan = [meeting for meeting in plan if takes_part(meeting, self.speaker)]
        self._attempts = 0
        self._epoch = process.order.header.epoch
        """The highest that it knows."""
        self._first_epoch = 0
        self._generations: dict[tuple[str, bool], int] = {}
        """The latest that it knows of each barrier, by name and scope."""
        self.meeting: Meeting | None = None
        self._request = barrier_pb2.ArriveRequest()

    def begin(self) -> None:
        """Go to the next meeting after a while."""
        self.meeting = None
        if self._plan:
            self.world.clock.after(self._draw(THINK_MS_MAX), self._arrive)

    def _draw(self, most: int) -> int:
        return self.meetings.rng.randint(0, most)

    def _arrive(self) -> None:
        meeting = self.meeting = self._plan.pop(0)
        if self.meetings.rng.random() * 100 < SKIPPED_PERCENT:
            self.begin()
            return
        self._request = request_of(meeting, self.speaker, self.meetings.next_id())
        known = self._generations.get((meeting.name, meeting.of_run), 0)
        if meeting.is_numbered and known:
            self._request.generation = known + 1
        self._attempts = self._first_epoch = 0
        self._call()

    def _call(self) -> None:
        meeting, process, world = self.meeting, self.process, self.world
        if meeting is None or not process.is_alive or process.agent.is_gone:
            return
        self._attempts += 1
        if self._attempts > ATTEMPTS_MAX:
            return
        self._request.first_epoch = self._first_epoch
        self._first_epoch = self._first_epoch or self._epoch
        deadline_ms = world.clock.now_ms + self.meetings.rng.choice(CALL_MS)
        metadata = ((WORKER_TOKEN_KEY, process.order.worker_token),)
        call = Call(self, meeting, self._request.SerializeToString(), metadata, deadline_ms)
        world.meeting_rule.began(self._request.payload, meeting)
        world.clock.at(deadline_ms, partial(self._give_up, call))
        if not self.meetings.loses(process):
            world.clock.after(self._draw(LATENCY_MS_MAX), partial(self.meetings.deliver, call))

    def _give_up(self, call: Call) -> None:
        """Make the call again whose answer did not come in time."""
        if not call.is_done:
            call.is_done = True
            self.world.clock.after(self._draw(RETRY_MS_MAX), self._call)

    def answered(self, call: Call, answer: barrier_pb2.ArriveResponse | Status) -> None:
        """Take the answer of the coordinator."""
        if call.is_done or not self.process.is_alive:
            return
        call.is_done = True
        if isinstance(answer, barrier_pb2.ArriveResponse):
            self.world.meeting_rule.received(self._request.payload, answer)
            self._epoch = max(self._epoch, answer.epoch)
            self._note_generation(call.meeting, answer.generation)
            self.begin()
        elif answer.code in AGAIN:
            self.world.clock.after(self._draw(RETRY_MS_MAX), self._call)
        elif answer.code in NEXT:
            self._note_generation(call.meeting, broken_of(answer).generation)
            self.begin()

    def _note_generation(self, meeting: Meeting, generation: int) -> None:
        self._generations[meeting.name, meeting.of_run] = generation


def broken_of(status: Status) -> details_pb2.BarrierBroken:
    """Return what a status says about a barrier that has failed."""
    broken = details_pb2.BarrierBroken()
    for detail in status.details:
        detail.Unpack(broken)  # nothing happens if it is another message
    return broken


class Meetings:
    """All callers of a seed, and the network between them and the coordinator."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = Random(f"{world.seed} meetings")
        self._more = Random(f"{world.seed} more meetings")
        is_active = self.rng.random() * 100 < ACTIVE_PERCENT
        self.is_active = is_active if world.options.meetings < 0 else world.options.meetings > 0
        self._requests = 0
        if self.is_active:
            self._look_later()

    def next_id(self) -> str:
        """Return a request id that was not used before."""
        self._requests += 1
        return f"r{self._requests}"

    def begin(self, group: Group) -> None:
        """Let the workers of a round, which all run, begin their scripts."""
        if not self.is_active or self.world.is_calm:
            return
        plan = draw_plan(self.rng, self._more, group.key[1].world_size)
        for process in group.living:
            Caller(self, process, plan).begin()

    def _look_later(self) -> None:
        self.world.clock.after(self._more.randint(1, LOOK_MS_MAX), self._look)

    def _look(self) -> None:
        """Let someone list the barriers of a job."""
        if self.world.is_calm:
            return
        fleet, server = self.world.fleet, self.world.server
        job = None if fleet is None else self._more.choice(self.world.jobs)
        if job is not None:
            server = self.world.server_of(job.job_id)
        if server is not None and server.busy_until_ms <= self.world.clock.now_ms:
            job = job or self._more.choice(self.world.jobs)
            server.calls.list(job.job_id, self._more.choice((0, 1, 2)))
        self._look_later()

    def loses(self, process: Process) -> bool:
        """Return whether the network loses what is sent from or to a process now."""
        if process.host.unreachable_until_ms > self.world.clock.now_ms:
            return True
        return not self.world.is_calm and self.rng.random() * 100 < LOST_PERCENT

    def deliver(self, call: Call) -> None:
        """Let a call arrive at the coordinator."""
        server = self.world.server_of(call.caller.process.host.plan.job_id)
        if server is not None and server.stalled_until_ms <= self.world.clock.now_ms:
            if not server.writes.hold_up(partial(self.deliver, call)):
                server.calls.take(call)
        else:
            status = Status(code=grpc.StatusCode.UNAVAILABLE.value[0])
            self.answer(call, status.SerializeToString(), is_status=True)

    def answer(self, call: Call, answer: bytes, *, is_status: bool) -> None:
        """Send an answer, which may get lost."""
        if self.loses(call.caller.process):
            return
        kind = Status if is_status else barrier_pb2.ArriveResponse
        found = kind.FromString(answer)
        delay_ms = self.rng.randint(0, LATENCY_MS_MAX)
        self.world.clock.after(delay_ms, partial(call.caller.answered, call, found))
