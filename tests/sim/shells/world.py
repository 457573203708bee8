"""One seed: the real shells of a coordinator and its agents, their network, and what goes wrong.

Everything random comes from generators that the seed begins, and everything happens in the order
of one schedule, so a seed is a history: the same one every time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from rallypoint.agent.helper.events import SpawnRequest
from sim.durable.journal import Disk
from sim.shells.calls import Server
from sim.shells.chaos import Chaos
from sim.shells.loop import NS, Loop, Schedule
from sim.shells.network import Network, ServerProcess
from sim.shells.node import DEFAULT_TIMING, FIRST_PORT, TARGET, AgentProcess, CoordinatorProcess
from sim.shells.plan import Fault, JobPlan, NodePlan, Rates, draw_jobs, draw_rates
from sim.shells.rules import Rules
from sim.shells.workers import Group, GroupKey, Helper, Worker

COLLATERAL_S_MAX = 0.2
STRAGGLE_S_MAX = 0.1
RETURN_S_MAX = 3.0
LOST_SHARE = 0.1
"""Share of the sweeps in which the helper dies, in seeds where helpers die at all."""
BURIALS_MAX = 20
"""How often the tasks of killed processes are cancelled: some begin their end with a wait."""
JUMP_SHARE = 0.25
"""Share of the starts of a coordinator at which the wall clock has jumped."""
JUMPS_S = (-3_600, -7, 7, 61, 3_600)
QUIET_WORK_S = 0.3
"""How long workers work once faults have stopped."""


@dataclass(slots=True, eq=False)
class Host:
    """One machine."""

    name: str
    plan: NodePlan
    job: JobPlan
    process: AgentProcess | None = None
    """The latest agent here; it may be gone."""
    unreachable_ns: int = 0
    """Until then nothing passes between it and the coordinator."""
    cut_off_ns: int = 0
    """The same beside a helper that stands still; the end of all faults does not mend it."""
    deaf_ns: int = 0
    """Until then nothing arrives here."""
    workers: list[Worker] = field(default_factory=list)
    """Workers that live here, of any agent."""

    @property
    def living(self) -> AgentProcess | None:
        """The agent that lives here, if there is one."""
        return None if self.process is None or self.process.is_gone else self.process


class World:
    """Everything that exists in one seed."""

    def __init__(
        self, seed: int, *, is_durable: bool | None = None, is_traced: bool = False
    ) -> None:
        self._seed = seed
        self.rng = Random(seed)
        self.rates, self.jobs = self.plan()
        self.schedule = Schedule(Random(self.draw()))
        self.timing = DEFAULT_TIMING
        self.disk = Disk(self, seed, is_durable)
        self.rules = Rules(self)
        self.hosts = [
            Host(f"{job.job_id}/{p.name}", p, job) for job in self.jobs for p in job.nodes
        ]
        self.coordinator: CoordinatorProcess | None = None
        self.is_dark = False
        """The coordinator's host is dead: attempts to connect get no answer."""
        self.is_calm = False
        """Faults have stopped."""
        self.is_over = False
        """No agent is left, and the last coordinator ends."""
        self.drained_jobs: set[str] = set()
        """Jobs in which an operator has drained a node."""
        self.violation: tuple[str, str] | None = None
        """The first broken rule, and how."""
        self.groups: dict[GroupKey, Group] = {}
        self.processes: list[AgentProcess | CoordinatorProcess] = []
        """All processes, also those that are gone."""
        self.trace: list[str] | None = [] if is_traced else None
        self.events: dict[str, int] = {}
        """How often what was noted."""
        self._digest = hashlib.blake2b(digest_size=8)
        self.network = Network(self)
        self._revived: tuple[Loop, ...] = ()
        """Loops of killed processes that end at last; nothing counts that they do."""
        self._lives = self._incarnations = self._pids = 0
        self._port = FIRST_PORT

    def plan(self) -> tuple[Rates, tuple[JobPlan, ...]]:
        """Return the faults and the jobs of the seed."""
        rates = draw_rates(self.rng)
        return rates, draw_jobs(self.rng, rates)

    # --- numbers ---

    def draw(self) -> int:
        """Return the seed of a further generator."""
        return self.rng.getrandbits(48)

    def next_pid(self) -> int:
        self._pids += 1
        return 100 + self._pids

    def next_port(self) -> int:
        self._port += 1
        return self._port

    def _happens(self, share: float) -> bool:
        return share > 0 and not self.is_calm and self.rng.random() < share

    def has_no_port(self) -> bool:
        return self._happens(self.rates.no_port)

    def cannot_start(self) -> bool:
        return self._happens(self.rates.cannot_start)

    def ignores_term(self) -> bool:
        return self._happens(self.rates.ignores_term)

    def loses_helper(self) -> bool:
        """Return whether the helper dies in the middle of a sweep."""
        return Fault.LOSE_HELPER in self.rates.kinds and self._happens(LOST_SHARE)

    def survives_kill(self) -> bool:
        return self._happens(self.rates.survives_kill)

    def holds_stderr(self) -> bool:
        """Return whether a child of a worker that ends keeps its standard error open."""
        return False

    @property
    def dates_ms(self) -> int | None:
        """Return by how much dates of failures are wrong at most; None: unknown."""
        return None

    # --- the record ---

    @property
    def digest(self) -> str:
        """Return a fingerprint of everything that was noted."""
        return self._digest.hexdigest()

    def note(self, what: str, *facts: object) -> None:
        """Write down what happened."""
        line = f"{self.schedule.now_ms} {what} {facts}"
        self.events[what] = self.events.get(what, 0) + 1
        self._digest.update(line.encode())
        if self.trace is not None:
            self.trace.append(line)

    def logged(self, method: str, event: str, fields: dict[str, object]) -> None:
        """Note a line of the log."""
        loop = asyncio._get_running_loop()
        name = loop.name if isinstance(loop, Loop) else ""
        if isinstance(loop, Loop) and loop in self._revived:
            return
        shown = {key: value for key, value in fields.items() if key not in ("exc_info", "incident")}
        self.note(f"log {event}", name, shown)
        self.rules.logged(method, event, fields, name)

    def violate(self, rule: str, text: str) -> None:
        """Note a broken rule; the seed ends."""
        if self.violation is None:
            self.violation = rule, f"at {self.schedule.now_ms} ms: {text}"
            self.schedule.is_halted = True

    # --- processes ---

    def start_coordinator(self) -> None:
        """Start a coordinator, with its journal or without memory, if none runs."""
        if self.coordinator is None:
            self._lives += 1
            self.is_dark = False
            self.note("coordinator", self._lives)
            self.coordinator = CoordinatorProcess(self, self._lives)
            self.coordinator.loop.wall_ahead_ns = self._jump_s() * NS
            self.processes.append(self.coordinator)

    def _jump_s(self) -> int:
        """Return how far the wall clock is ahead where a coordinator starts again.

        It comes from a separate generator, so that what else happens in a seed stays what it was.
        """
        rng = Random(f"{self._seed} wall clock {self._lives}")
        is_drawn = self._lives > 1 and bool(self.rates.kinds) and rng.random() < JUMP_SHARE
        jump_s = rng.choice(JUMPS_S) if is_drawn else 0
        if jump_s:
            self.note("wall clock", jump_s)
        return jump_s

    def restart_coordinator(self) -> None:
        """Start another coordinator, unless faults are over: then one was started."""
        if not self.is_calm:
            self.start_coordinator()

    def kill_coordinator(self, *, resets: bool) -> None:
        """Kill the coordinator; if its host dies too, no process resets its streams."""
        life, self.coordinator = self.coordinator, None
        if life is not None:
            self.is_dark = not resets
            self.rules.killed(life.loop)
            life.is_gone = life.was_killed = life.loop.is_dead = True
            self.network.reset(life, resets=resets)

    def coordinator_ended(self, life: CoordinatorProcess) -> None:
        """Note that a coordinator has ended in order."""
        if life.is_gone:
            return
        life.is_gone = life.loop.is_dead = True
        self.coordinator = None
        self.note("coordinator ended", life.number)
        self.rules.ended(life.loop)
        if life.server is not None and life.server.bugs:
            self.violate("NothingIsLost", f"{life.loop.name}: {life.server.bugs}")
        self.network.reset(life, resets=True)
        if self.is_calm and not self.is_over:
            self.start_coordinator()  # it was ending when faults stopped
        elif life.could_not_write:
            self.disk.restart_later()

    def start_agent(self, host: Host) -> None:
        """Start an agent on a host that has none."""
        if host.living is None:
            self._incarnations += 1
            self.note("agent", host.name, self._incarnations)
            host.process = AgentProcess(self, host, host.job, self._incarnations)
            self.processes.append(host.process)
            host.process.begin()

    def return_agent(self, host: Host) -> None:
        """Start another agent on a host, unless faults are over."""
        if not self.is_calm:
            self.start_agent(host)

    def kill_agent(self, process: AgentProcess, *, resets: bool) -> None:
        """Kill an agent with everything that it started."""
        self.rules.killed(process.loop)
        process.is_gone = process.was_killed = process.loop.is_dead = True
        process.helper.is_closed = True
        process.helper.kill_all()
        self.network.reset(process, resets=resets)
        if resets:
            self.rules.lost(process)
        self._replace(process.host)

    def agent_ended(self, process: AgentProcess) -> None:
        """Note that an agent has exited by itself."""
        if process.is_gone:
            return
        process.is_gone = process.loop.is_dead = True
        assert process.main is not None
        process.exit_code = None if process.main.cancelled() else process.agent.exit_code
        self.note("exit", process.loop.name, process.exit_code)
        self.rules.exited(process)
        self.rules.ended(process.loop)
        self.network.reset(process, resets=True)
        self._replace(process.host)

    def _replace(self, host: Host) -> None:
        if self._happens(self.rates.returns):
            delay_s = self.rng.uniform(0.05, RETURN_S_MAX)
            self.schedule.after(delay_s, partial(self.return_agent, host))

    def server_at(self, target: str) -> ServerProcess | None:
        """Return the process that listens at `host:port`, if it lives."""
        return self.coordinator

    def is_dark_at(self, target: str) -> bool:
        """Return whether the host there is dead: attempts to connect get no answer."""
        return self.is_dark

    def targets_of(self, host: Host) -> str:
        """Return the addresses that an agent is given."""
        return TARGET

    def stop_others(self) -> None:
        """End in order what is neither a coordinator nor an agent: here there is nothing."""

    def process_of(self, loop: Loop) -> AgentProcess | CoordinatorProcess:
        """Return the process that has this loop."""
        return next(one for one in reversed(self.processes) if one.loop is loop)

    def serve(self, loop: Loop, interceptors: Sequence[Any]) -> Server:
        """Return the server of the coordinator that this loop runs."""
        life: Any = self.process_of(loop)
        assert not isinstance(life, AgentProcess)
        life.server = Server(loop, interceptors)
        server: Server = life.server
        return server

    def replace_helper(self, loop: Loop) -> Helper:
        """Start a new helper for the agent of this loop."""
        process = self.process_of(loop)
        assert isinstance(process, AgentProcess)
        process.helper = Helper(self, process)
        return process.helper

    def compute(self) -> None:
        """Let the running coordinator compute for one step of its core."""
        loop = asyncio._get_running_loop()
        if self.rates.step_ms and isinstance(loop, Loop):
            loop.spend(loop.rng.randint(0, self.rates.step_ms * 1_000_000))

    # --- workers ---

    def spawn(self, owner: AgentProcess, request: SpawnRequest, epoch: int) -> Worker:
        """Start a worker."""
        env = dict(request.env)
        key = (
            env["TORCHELASTIC_RUN_ID"],
            env["RALLYPOINT_RUN"],
            env["RALLYPOINT_ROUND"],
            env["MASTER_ADDR"],
            env["MASTER_PORT"],
            epoch,
        )
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(
                key,
                int(env["WORLD_SIZE"]),
                int(env["GROUP_WORLD_SIZE"]),
                int(env["TORCHELASTIC_RESTART_COUNT"]),
            )
        worker = Worker(self.next_pid(), request.worker_id, owner, env, group)
        self.note("spawn", owner.loop.name, worker.pid, *key, env["RANK"], group.restart_count)
        self.rules.spawned(worker)
        group.workers.append(worker)
        owner.host.workers.append(worker)
        return worker

    def join(self, group: Group) -> None:
        """Let the workers of a round begin to work once all of them run."""
        if group.has_joined or group.is_broken or len(group.living) < group.world_size:
            return
        group.has_joined = True
        self.note("joined", *group.key)
        work_s = next(job.work_s for job in self.jobs if job.job_id == group.job_id)
        if self.is_calm:
            self.finish(group, QUIET_WORK_S)
        elif work_s is not None:
            self.finish(group, work_s)

    def finish(self, group: Group, work_s: float) -> None:
        """Let the workers of a group exit with 0 after their work."""
        for worker in group.living:
            delay_s = work_s + self.rng.uniform(0, STRAGGLE_S_MAX)
            self.schedule.after(delay_s, partial(self._finish_one, worker))

    def _finish_one(self, worker: Worker) -> None:
        if not worker.group.is_broken:
            self.end(worker, 0, None)

    def end(self, worker: Worker, code: int | None, signum: int | None) -> None:
        """End a worker that still lives; its peers may notice."""
        if not worker.is_alive:
            return
        worker.is_alive = False
        worker.exit_code, worker.signum = code, signum
        worker.owner.host.workers.remove(worker)
        self.note("worker ends", worker.pid, code, signum)
        worker.owner.helper.note_end(worker)
        if code != 0 and not worker.is_signalled:
            self._break(worker.group)
            self.rules.failed(worker)
        elif worker.is_success:
            self.rules.succeeded(worker)

    def _break(self, group: Group) -> None:
        group.is_broken = True
        for peer in group.living:
            if self._happens(self.rates.collateral):
                delay_s = self.rng.uniform(0.001, COLLATERAL_S_MAX)
                self.schedule.after(delay_s, partial(self.end, peer, 1, None))

    # --- phases ---

    def begin(self) -> None:
        """Start the coordinator and, one by one, the agents; make the first fault due."""
        self.start_coordinator()
        for host in self.hosts:
            self.schedule.after(host.plan.starts_s, partial(self.start_agent, host))
        chaos = Chaos(self)
        chaos.begin()
        chaos.freeze_a_helper(Random(f"helper {self._seed}"))
        self.disk.begin()

    def calm(self) -> None:
        """Stop all faults, and mend what is broken."""
        self.is_calm = True
        self.note("calm")
        for host in self.hosts:
            host.unreachable_ns, host.deaf_ns = host.cut_off_ns, 0
            if host.living is not None:
                host.living.loop.thaw()
        if self.coordinator is not None:
            self.coordinator.loop.thaw()
        self.start_coordinator()
        for group in list(self.groups.values()):
            if group.has_joined and not group.is_broken:
                self.finish(group, QUIET_WORK_S)

    def bury(self) -> None:
        """Let the tasks of killed processes end where nothing sees it: Python wants them ended."""
        self.schedule.is_halted, self.is_calm, self.is_over = False, True, True
        for _ in range(BURIALS_MAX):
            left = [one.loop for one in self.processes if one.loop.pending()]
            if not left:
                return
            self._revived = tuple(left)
            for loop in left:
                loop.is_dead = False
                loop.thaw()
                for task in loop.pending():
                    task.cancel()
            self.schedule.run(self.schedule.now_ns + 20 * NS)
        raise AssertionError([task for loop in self._revived for task in loop.pending()])
