"""Takes evidence of each round that is suspected to hang, and submits what it says to the core.

A suspicion is examined once, when all its members are there to be asked. The core waits only for a
while: whatever goes wrong here leaves a suspicion without a culprit. Evidence that comes later
counts as long as the suspicion holds.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.api.evidence.collecting import Collecting, Round, find_round
from rallypoint.server.core.evidence.waits import shows_hang
from rallypoint.server.core.messages.inputs import Examined
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator, CoordinatorEnded
from rallypoint.server.shell.listeners import Listener

log = get_logger()

SUSPECTED = "suspected"
TEXT_CHARS_MAX = 300
"""Characters of what the evidence says; verdicts and waits quote it."""
AT_ONCE_MAX = 4
"""Suspicions that are examined at the same time: a file server that stands still stops many jobs,
and the evidence of a large one takes 32 MiB. The others wait for their turn, and are not stopped
before it."""
UNANSWERED = "there is no evidence: no agent has answered"


class Suspicion(Struct, frozen=True):
    """A suspicion of a hang that nothing has examined yet."""

    run: int
    round: int
    since_ms: int
    """When it began; a round may be suspected several times."""


class Suspicions(Listener):
    """The suspicions of one shard."""

    def __init__(self, collecting: Collecting) -> None:
        """Begin without suspicions; `run` examines them."""
        self._collecting = collecting
        self._found: dict[JobId, Suspicion] = {}
        """The suspicion of each job that is examined, or was."""
        self._queue: asyncio.Queue[tuple[JobId, Suspicion]] = asyncio.Queue()
        """Those that wait for their turn: one of each job, and perhaps older ones that are over."""

    def note_job(self, job_id: JobId, state: State) -> None:
        """Begin to examine a job that is suspected, or forget that it was."""
        suspicion = _find_suspicion(state, job_id)
        if suspicion is None:
            self._found.pop(job_id, None)
        elif self._found.get(job_id) != suspicion and _can_begin(state, job_id):
            self._found[job_id] = suspicion
            self._queue.put_nowait((job_id, suspicion))

    async def run(self, coordinator: Coordinator) -> None:
        """Examine suspicions, and submit what is found to `coordinator`, until cancelled."""
        slots = asyncio.Semaphore(AT_ONCE_MAX)
        async with asyncio.TaskGroup() as tasks:
            while True:
                job_id, suspicion = await self._queue.get()
                await slots.acquire()
                task = tasks.create_task(self._examine(coordinator, job_id, suspicion))
                task.add_done_callback(lambda _: slots.release())

    async def _examine(self, coordinator: Coordinator, job_id: JobId, suspicion: Suspicion) -> None:
        """Examine one suspicion, if it still holds."""
        try:
            round = await coordinator.read(lambda state, now_ms: _find(state, job_id, suspicion))
            if round is None:
                return
            taken = await self._collecting.take(round, SUSPECTED)
            evidence = taken.evidence
            text = evidence.text if evidence.answered else UNANSWERED
            if self._found.get(job_id) == suspicion:
                is_conclusive = shows_hang(taken.ranks, evidence.culprit)
                culprit, text = evidence.culprit, _shorten(text)
                await coordinator.submit(
                    Examined(job_id, round.number, culprit, text, is_conclusive)
                )
        except CoordinatorEnded:
            pass  # the next one examines it
        except Exception as error:  # the root of the task; the core does not wait for it
            log.error("suspicion_not_examined", job_id=job_id, exc_info=error)


def _find_suspicion(state: State, job_id: JobId) -> Suspicion | None:
    job = state.jobs.get(job_id)
    if job is None or job.phase is not Phase.RUNNING or job.round is None:
        return None
    hang = job.round.hang
    return None if hang is None else Suspicion(job.run, job.round.header.number, hang.suspected_ms)


def _can_begin(state: State, job_id: JobId) -> bool:
    """Return whether a suspicion waits for evidence, and all members can be asked.

    After a start of the coordinator they come back one after the other.
    """
    round = state.jobs[job_id].round
    is_awaited = round is not None and round.hang is not None and not round.hang.is_examined
    return is_awaited and state.tally(job_id).unknown == 0


def _find(state: State, job_id: JobId, suspicion: Suspicion) -> Round | None:
    """Return the round that is suspected; None: not any more."""
    if _find_suspicion(state, job_id) != suspicion:
        return None
    return find_round(state, state.jobs[job_id])


def _shorten(text: str) -> str:
    if len(text) <= TEXT_CHARS_MAX:
        return text
    return f"{text[: TEXT_CHARS_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
