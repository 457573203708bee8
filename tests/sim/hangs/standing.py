"""Simulated workers that stand still for a while, their agents that notice, and the evidence.

In some rounds all workers stop at about the same time, or only those of one node; later they move
again, or never. An agent looks at its own workers now and then. The evidence of a suspicion comes
soon, late or not at all, and sometimes it is about another round.

Everything here is drawn from a separate generator, so the other choices of a seed stay as they are.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.process import Group, Process
    from sim.world.server import Server
    from sim.world.world import World

ACTIVE_PERCENT = 50
"""Of the seeds."""
HANGS_PERCENT = 70
"""Of the rounds in such a seed have workers that stand still."""
ALL_PERCENT = 75
"""Of these, all their workers do."""
DECEIVES_PERCENT = 20
"""Of the workers that stand still, as far as their agents see, and report steps."""
BEGINS_MS_MAX = 6_000
"""When they stop, after all of them run."""
LASTS_MS = (1_000, 5_000, 12_000, None)
"""How long they stand; None: until faults stop."""
SKEW_MS_MAX = 400
"""How far apart they stop and move again."""
LOOK_MS = (200, 700)
"""Pause between two looks of an agent."""
EVIDENCE_MS_MAX = 7_000
LOST_PERCENT = 15
"""Of the evidence."""
STALE_PERCENT = 10
"""Of it is about the round before."""


class Standing:
    """All workers of a seed that stand still at times."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = Random(f"{world.seed} hangs")
        is_drawn = self._rng.random() * 100 < ACTIVE_PERCENT
        self._is_active = bool(world.options.hangs) if world.options.hangs >= 0 else is_drawn
        self._times: dict[int, list[tuple[int, int | None]]] = {}
        """When each process stood still, by its id: from and until."""
        self._began_ms: dict[int, int] = {}
        """When each process began to work."""
        self._deceives: set[int] = set()
        self._asked: set[tuple[int, JobId, int, int]] = set()
        """Suspicions of which evidence was taken."""

    def _happens(self, percent: int) -> bool:
        return self._rng.random() * 100 < percent

    # --- workers ---

    def begin(self, group: Group) -> None:
        """Let the workers of a round, all of which run, stand still at times."""
        if not self._is_active:
            return
        draw, clock = self._rng, self.world.clock
        living = group.living
        self._began_ms |= dict.fromkeys((process.pid for process in living), clock.now_ms)
        agents = list(dict.fromkeys(process.agent for process in living))
        for agent in agents:
            self._look_later(agent, group)
        if not self._happens(HANGS_PERCENT):
            return
        only = None if self._happens(ALL_PERCENT) else draw.choice(agents)
        begins_ms, lasts_ms = draw.randint(0, BEGINS_MS_MAX), draw.choice(LASTS_MS)
        for process in living:
            if only in (None, process.agent):
                delay_ms = begins_ms + draw.randint(0, SKEW_MS_MAX)
                clock.after(delay_ms, partial(self._stop, process, lasts_ms))

    def _stop(self, process: Process, lasts_ms: int | None) -> None:
        if not process.is_alive or self.world.is_calm:
            return
        self._times.setdefault(process.pid, []).append((self.world.clock.now_ms, None))
        if self._happens(DECEIVES_PERCENT):
            self._deceives.add(process.pid)
        if lasts_ms is not None:
            lasts_ms += self._rng.randint(0, SKEW_MS_MAX)
            self.world.clock.after(lasts_ms, partial(self._move, process.pid))

    def _move(self, pid: int) -> None:
        times = self._times[pid]
        since_ms, until_ms = times[-1]
        if until_ms is None:
            times[-1] = since_ms, self.world.clock.now_ms
        self._deceives.discard(pid)

    def calm(self) -> None:
        """Let all of them move."""
        for pid in self._times:
            self._move(pid)

    def may_step(self, process: Process) -> bool:
        """Return whether a worker reports steps now."""
        return process.pid in self._deceives or self._still_since_ms(process) is None

    def _still_since_ms(self, process: Process) -> int | None:
        times = self._times.get(process.pid)
        return times[-1][0] if times and times[-1][1] is None else None

    def has_stood(self, process: Process, for_ms: int, since_ms: int) -> bool:
        """Return whether a worker has stood still for so long at once, and also at or after a time.

        Args:
            process: the worker.
            for_ms: how long.
            since_ms: it stood still at this time, or later.
        """
        now_ms = self.world.clock.now_ms
        spans = ((begin, now_ms if end is None else end) for begin, end in self._times_of(process))
        return any(end - begin >= for_ms and end >= since_ms for begin, end in spans)

    def _times_of(self, process: Process) -> list[tuple[int, int | None]]:
        return self._times.get(process.pid, [])

    # --- agents ---

    def _look_later(self, agent: Agent, group: Group) -> None:
        delay_ms = self._rng.randint(*LOOK_MS)
        self.world.clock.after(delay_ms, partial(self._look, agent, group))

    def _look(self, agent: Agent, group: Group) -> None:
        if agent.is_gone or not any(process.agent is agent for process in group.living):
            return
        agent.take(partial(self._see, agent, group))
        self._look_later(agent, group)

    def _see(self, agent: Agent, group: Group) -> None:
        """Let the agent see whether its workers have stood still for too long."""
        mine = [process for process in group.living if process.agent is agent]
        since = [self._still_since_ms(process) for process in mine]
        number, now_ms = group.key[1].number, self.world.clock.now_ms
        known = [one for one in since if one is not None]
        still_ms = max(known) if mine and len(known) == len(since) else None
        if still_ms is not None and now_ms - still_ms < agent.spec.hang_after_ms:
            still_ms = None
        agent.post(agent_inputs.ProgressSeen(number, still_ms))

    # --- evidence ---

    def examine(self, server: Server) -> None:
        """Take evidence of every round that is suspected now, as the shell does."""
        for job_id, job in server.state.jobs.items():
            round = job.round
            if round is None or round.hang is None or round.hang.is_examined:
                continue
            key = (server.boot, job_id, round.header.number, round.hang.suspected_ms)
            if job.phase is Phase.RUNNING and key not in self._asked:
                self._asked.add(key)
                self._examine(server, job)

    def _examine(self, server: Server, job: Job) -> None:
        assert job.round is not None
        header, draw = job.round.header, self._rng
        if self._happens(LOST_PERCENT):
            return
        number = header.number - self._happens(STALE_PERCENT)
        rank = draw.choice((None, draw.randrange(header.world_size)))
        text, is_conclusive = f"rank {rank} has not come", rank is not None or self._happens(50)
        examined = inputs.Examined(job.job_id, number, rank, text, is_conclusive)
        delay_ms = draw.randint(0, EVIDENCE_MS_MAX)
        self.world.clock.after(delay_ms, partial(self._submit, server, examined))

    @staticmethod
    def _submit(server: Server, examined: inputs.Examined) -> None:
        if not server.is_dead:
            server.request(examined)
