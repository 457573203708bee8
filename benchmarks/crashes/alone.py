"""A coordinator that is alone: at which moments it is killed, and what is looked at then."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

from crashes.disk import Disk
from crashes.figures import Death
from crashes.kinds import Ending, Failing, Moving, Steady
from crashes.play import LIMIT_S, Play
from crashes.seat import Seat
from harness.trial import MeasurementFailed, Trial
from rallypoint.agent.machine.ports import PortReserver

POLL_S = 0.03
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


class Alone(Play):
    """A coordinator that is alone, and its crashes."""

    def __init__(self, stack: ExitStack, state: str, agents: int, seed: int, away_s: float) -> None:
        """Prepare.

        Args:
            stack: closes everything.
            state: of the coordinator, as for --state.
            agents: how many, in four jobs.
            seed: of what is done, and when.
            away_s: longest time without a coordinator.
        """
        trial = stack.enter_context(Trial())
        ports = PortReserver()
        stack.callback(ports.close)
        self.seat, self.disk = Seat(trial, ports, state), Disk(state)
        jobs = ["steady", "failing", "moving", "ending"]
        super().__init__(stack, trial, [self.seat.address], seed, jobs)
        self.deaths: list[Death] = []
        self.longest_s: float = away_s
        each = agents // 4
        self.crews = {
            "steady": Steady(self.stage, "steady", each, each, manner=("shares",)),
            "failing": Failing(self.stage, "failing", each, each, manner=("slow",)),
            "moving": Moving(self.stage, "moving", each, max(1, each - 1), manner=("slow",)),
            "ending": Ending(self.stage, "ending", each, each, max_restarts="1"),
        }

    def open(self) -> None:
        self.seat.start()
        super().open()

    def describe_last(self) -> str:
        # Not one that came while agents returned.
        death = next((one for one in reversed(self.deaths) if one.away_s), self.deaths[-1])
        attached = f"{max(death.attached_s):.2f} s" if death.attached_s else "-"
        return f"{death.aim}; {', '.join(death.done)}; all attached after {attached}"

    def recover(self) -> None:
        self.seat.revive()

    def _new_death(self, aim: str) -> Death:
        death = Death(aim)
        self.deaths.append(death)
        self.crashes.append(death)
        return death

    def crash(self, *, kills: bool = True) -> None:
        crash = self._new_death(self._aim())
        moment = MOMENTS[crash.aim]
        free = [name for name in self._free() if name not in (moment.job, "steady")]
        idle: list[str] = []
        for name in free:
            (idle if self.chance.random() >= OTHERS else crash.done).append(name)
        crash.done = [self.act(name) for name in crash.done]
        if moment.job:
            crash.done.append(self.act(moment.job, moment.action))
            if moment.joins:
                self.crews[moment.job].await_join()
        time.sleep(self.chance.uniform(*moment.within_s))
        if not kills:
            return
        self._kill(crash)
        self._stay_away(crash, idle)
        self._restart(crash)

    def _free(self) -> list[str]:
        """Return the jobs to which something can be done."""
        return [crew.job_id for crew in self.living()]

    def _aim(self) -> str:
        """Return the moment that is possible now and was least often aimed at."""
        counts = Counter(crash.aim for crash in self.crashes)
        possible = [
            aim
            for aim, moment in MOMENTS.items()
            if not moment.job
            or (moment.job in self._free() and moment.action in self.crews[moment.job].actions())
        ]
        fewest = min(counts[aim] for aim in possible)
        return self.chance.choice([aim for aim in possible if counts[aim] == fewest])

    def _kill(self, crash: Death) -> None:
        crash.rss_mb = self.seat.read_rss_mb()
        if crash.aim == "inside an append":
            self.disk.await_append()
        self.seat.kill()
        crash.journal_bytes = self.disk.size()
        remains = self.disk.look()
        crash.is_in_append, crash.phases = remains.is_cut, list(remains.phases)

    def _stay_away(self, crash: Death, idle: list[str]) -> None:
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
                crash.done.append(f"{self.act(name)} meanwhile")
        time.sleep(max(0.0, end_s - time.monotonic()))

    def _restart(self, crash: Death) -> None:
        agents = [agent for crew in self.living() for agent in crew.expected_agents()]
        self.seat.begin()
        if self.chance.random() < AGAIN:
            time.sleep(self.chance.uniform(0, 2))
            again = self._new_death("agents returning")
            again.done = ["nothing"]
            self._kill(again)
            self.seat.begin()
        crash.listening_s = self.seat.await_listening()
        missing = dict(agents)
        while missing:
            if time.monotonic() > self.seat.began_s + LIMIT_S:
                raise MeasurementFailed(f"{sorted(missing)} are not attached")
            attached = self._attached()
            for name, process in list(missing.items()):
                if name in attached:
                    crash.attached_s.append(time.monotonic() - self.seat.began_s)
                if name in attached or process.popen.poll() is not None:
                    del missing[name]
            time.sleep(POLL_S)

    def _attached(self) -> set[str]:
        ids = [job_id for job_id, crew in self.crews.items() if crew.model.run]
        jobs = [self.stage.client.get_job(job_id).job for job_id in ids]
        return {node.name for job in jobs for node in job.nodes if node.attached}
