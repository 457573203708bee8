"""One seed: coordinator, nodes and network on a virtual clock, and the faults they meet.

Everything random comes from one generator and everything happens in the order of one heap, so a
seed is a history: the same one every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property, partial
from random import Random

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.round import RoundHeader
from rallypoint.server.core.model.spec import JobSpec, Timing
from sim.durable.disk import Disk
from sim.durable.progress import Progress
from sim.durable.readers import Readers
from sim.durable.recovery import begin_without_memory, load
from sim.durable.rules import NothingIsTakenBack
from sim.keys.callers import Keys
from sim.meetings.callers import Meetings
from sim.operations.operators import Operators
from sim.rules.keys import KeysHold
from sim.rules.meetings import BarriersHold
from sim.rules.safety import Safety
from sim.seeds.chaos import TAKEOVER_MS, Chaos
from sim.seeds.coverage import Coverage
from sim.seeds.faults import Faults, calm, changed, draw_faults
from sim.seeds.scenario import JobPlan, NodePlan, draw_jobs
from sim.shards.fleet import Fleet
from sim.shards.network import FleetLink, FleetNetwork
from sim.world.clock import Clock
from sim.world.last_words import CUT_OFF, LastWords, draw_last_words, draw_record
from sim.world.link import Link
from sim.world.network import Network
from sim.world.node import Agent, Host
from sim.world.process import Group, Process
from sim.world.processes import STRAGGLE_MS_MAX
from sim.world.server import Server

FIRST_EPOCH = 1_000_000
COLLATERAL_MS_MAX = 400
AGAIN_MS = 1_000
RETURN_MS_MAX = 8_000
"""How long a node is without an agent before the next one starts."""


class World:
    """Everything that exists in one seed."""

    is_dark = False
    """The coordinator's host is dead: attempts to connect get no answer."""
    is_calm = False
    """Faults have stopped."""
    is_finishing = False
    """Workers finish their work as soon as all of their round run."""
    was_set_back = False
    """A coordinator has started with a clock behind its predecessor's."""

    def __init__(
        self, seed: int, options: Mapping[str, str] | None = None, *, is_traced: bool = False
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.options: Faults = changed(draw_faults(self.rng), options or {})
        self.faults = self.options
        """The options while faults happen; then `calm`."""
        self.jobs: tuple[JobPlan, ...] = draw_jobs(self.rng, self.options)
        self.timing = Timing(start_due_ms=self.rng.choice((3_000, 30_000)))
        self.clock = Clock()
        self.coverage = Coverage()
        self.safety = Safety(self)
        self.meeting_rule = self.safety.find(BarriersHold)
        self.network = FleetNetwork(self) if self.options.owners else Network(self)
        self.hosts = [
            Host(f"{plan.job_id}/{number}:{plan.name}", plan)
            for job in self.jobs
            for number, plan in enumerate(job.nodes)
        ]
        self.fleet: Fleet | None = None
        """Several coordinators that share a store; None: there is one."""
        self.server: Server | None = None
        """The only coordinator."""
        self.steps = 0
        """Steps of the coordinator's core."""
        self.drained: set[tuple[JobId, NodeName]] = set()
        """Nodes that an operator has drained, by their names at the time."""
        self._kept_out: dict[tuple[JobId, NodeName], None] = {}
        """Nodes that an operator has cordoned, by their names at the time."""
        self.agents: dict[SessionId, Agent] = {}
        """Every agent that was ever started, by its session, oldest first."""
        self.processes: dict[int, Process] = {}
        """Every worker process that was ever started, by its id."""
        self._words = Random(f"{seed} words")
        """A separate generator: the other choices of a seed stay as they are."""
        self.groups: dict[tuple[JobId, RoundHeader], Group] = {}
        self.trace: list[str] | None = [] if is_traced else None
        self._digest = hashlib.blake2b(digest_size=8)
        self.meetings = Meetings(self)
        self.keys = Keys(self)
        self.operators = Operators(self)
        self.readers = Readers(self)
        self.progress = Progress(self)
        self._boots = self._incarnations = 0
        self._before: Server | None = None
        """The process before the present one."""
        self._epoch = FIRST_EPOCH
        self._pids = 100
        self.disk = Disk(self)
        if self.options.owners:
            self.fleet = Fleet(self)
        else:
            self.start_coordinator()
        for host in self.hosts:
            if host.plan.starts_ms < self.faults.until_ms:
                self.clock.at(host.plan.starts_ms, partial(self.start_agent, host))
        self.chaos = Chaos(self)

    @cached_property
    def key_rule(self) -> KeysHold:
        """Return the rule about keys."""
        return self.safety.find(KeysHold)

    @cached_property
    def read_rule(self) -> NothingIsTakenBack:
        """Return the rule about readers."""
        return self.safety.find(NothingIsTakenBack)

    @property
    def digest(self) -> str:
        """Return a fingerprint of everything that has been noted."""
        return self._digest.hexdigest()

    def note(self, what: str, *facts: object) -> None:
        """Write down what happened."""
        line = f"{self.clock.now_ms} {what} {facts}"
        self._digest.update(line.encode())
        if self.trace is not None:
            self.trace.append(line)

    def unix_ms(self) -> int:
        """Return the Unix time by every clock of the world that was not set back."""
        return FIRST_EPOCH + self.clock.now_ms

    def plan_of(self, session: SessionId) -> NodePlan:
        """Return how the agent of a session was started."""
        return self.agents[session].host.plan

    def happens(self, percent: int) -> bool:
        """Return whether something with this probability happens now."""
        return percent > 0 and self.rng.random() * 100 < percent

    # --- the coordinator ---

    def server_of(self, job_id: JobId) -> Server | None:
        """Return who serves a job."""
        return self.server if self.fleet is None else self.fleet.server_of(job_id)

    def next_boot(self) -> int:
        """Return the number of another process, or of another owner of a shard."""
        self._boots += 1
        return self._boots

    def new_link(self, agent: Agent) -> Link:
        """Return the link of an agent."""
        return Link(agent) if self.fleet is None else FleetLink(agent)

    def start_coordinator(self) -> None:
        """Start a process of the coordinator: without memory, or with its journal."""
        if self.server is not None:
            return
        unix_ms = self.unix_ms()
        if self._boots and self.happens(self.faults.clock_back_percent):
            unix_ms = self._epoch - self.rng.randint(1, 5_000)
            self.was_set_back = True
        self._boots += 1
        self.is_dark = False
        if self.disk.is_durable:
            unix_ms += self.disk.draw_jump_ms() if self._boots > 1 else 0
            loaded = load(self.disk, unix_ms, self.timing, self._before)
            if loaded is None:
                self.disk.begin_again_later()
                return
            past = loaded
        else:
            past = begin_without_memory(self._boots, unix_ms, self.timing)
        epoch = past.state.epoch
        self._epoch = max(self._epoch, epoch)
        self.note("coordinator", self._boots, epoch)
        self.server = Server(self, self._boots, past, self.unix_ms() - unix_ms)
        if past.contacts is not None:
            assert self._before is not None
            self.safety.restored(self._before, self.server)

    def stop_coordinator(self, *, resets: bool) -> None:
        """Kill the coordinator; if its host dies too, no process resets its streams."""
        server, self.server = self.server, None
        if server is None:
            return
        server.died_ms, server.is_dead = server.now_ms(), True
        self._before = server
        self.safety.crashed(server)
        self._epoch = max(self._epoch, server.state.epoch)
        self.is_dark = not resets
        self.keys.coordinator_gone(server)
        for stream in list(self.network.streams):
            agent_ms = self.rng.randint(0, 10) if resets else None
            self.network.cut(stream, server_ms=None, agent_ms=agent_ms)

    def shake(self, server: Server, away_ms: int) -> None:
        """Tell the rules that the coordinator is about to be away for so long."""
        jobs = [job.job_id for job in self.jobs]
        self.safety.shaken(server, self.clock.now_ms + away_ms + TAKEOVER_MS, jobs)

    # --- nodes ---

    def start_agent(self, host: Host, spec: JobSpec | None = None) -> None:
        """Start an agent on a host that has none, with the flags of its plan or with others."""
        if host.has_agent or self.is_calm:
            return
        self._incarnations += 1
        host.agent = Agent(self, host, self._incarnations, spec or host.plan.spec)
        self.agents[host.agent.session] = host.agent
        host.disturbed_ms = self.clock.now_ms
        self.safety.joined(host.agent)
        self.note("agent", host.name, host.agent.session)
        host.agent.begin()

    def kill_agent(self, agent: Agent, *, resets: bool) -> None:
        """Kill an agent with everything that it started."""
        agent.die()
        for stream in list(self.network.streams):
            if stream.agent is agent:
                server_ms = self.rng.randint(0, 10) if resets else None
                self.network.cut(stream, server_ms=server_ms, agent_ms=None)
        self.agent_gone(agent)

    def agent_gone(self, agent: Agent) -> None:
        """Perhaps start another agent on the host of one that is gone."""
        self.note("gone", agent.host.name, agent.exit_code)
        self.coverage.counts["exit code", str(agent.exit_code)] += 1
        is_stranger = agent.host.is_stranger
        agent.host.disturbed_ms = self.clock.now_ms
        if not is_stranger and self.happens(self.faults.return_percent):
            delay_ms = self.rng.randint(50, RETURN_MS_MAX)
            self.clock.after(delay_ms, partial(self.start_agent, agent.host))

    def drain(self, agent: Agent, time_ms: int) -> None:
        """Let an operator drain a node, if a coordinator runs."""
        server = self.server_of(agent.host.plan.job_id)
        if server is not None:
            self.drained.add((agent.host.plan.job_id, agent.name))
            request = inputs.DrainNode(agent.host.plan.job_id, agent.name, time_ms, "maintenance")
            server.request(request)

    def partition(self, host: Host, duration_ms: int) -> None:
        """Let nothing pass between a host and the coordinator for a while."""
        host.unreachable_until_ms = self.clock.now_ms + duration_ms

    def disturb_host(self, host: Host) -> None:
        """Remember that something went wrong that concerns a host and its job."""
        host.disturbed_ms = self.clock.now_ms
        self.safety.disturbed(host.plan.job_id)

    def disturb_all(self) -> None:
        """Remember that something went wrong that concerns every host."""
        for host in self.hosts:
            self.disturb_host(host)

    # --- operators ---

    def ask_for(self, host: Host, *, is_cordon: bool) -> None:
        """Let an operator cordon or uncordon the node of a host."""
        job_id = host.plan.job_id
        server = self.server_of(job_id)
        if server is None:
            return
        name = NodeName(host.plan.name) if host.agent is None else host.agent.name
        request: inputs.Request = inputs.Uncordon(job_id, name)
        if is_cordon:
            self._kept_out[(job_id, name)] = None
            request = inputs.Cordon(job_id, name, "an operator")
        server.request(request)

    def note_kept_out(self, job_id: JobId, name: NodeName) -> None:
        """Remember that an operator has cordoned a node."""
        self._kept_out[(job_id, name)] = None

    def _take_nodes_back(self) -> None:
        """Uncordon every node that is kept out or is about to be."""
        assert self.server is not None
        for job in self.server.state.jobs.values():
            self._take_back(self.server, job)
        for job_id, name in self._kept_out:
            self.server.request(inputs.Uncordon(job_id, name))

    def _take_back(self, server: Server, job: Job) -> None:
        for health in job.health:
            server.request(inputs.Uncordon(job.job_id, health.name))

    def _keep_taking_back(self) -> None:
        """Uncordon nodes again and again: shards may move, and requests get lost with that."""
        for plan in self.jobs:
            server = self.server_of(plan.job_id)
            job = None if server is None else server.state.jobs.get(plan.job_id)
            if server is not None and job is not None:
                self._take_back(server, job)
        if not self.is_finishing:
            self.clock.after(AGAIN_MS, self._keep_taking_back)

    # --- processes ---

    def next_pid(self) -> int:
        """Return a process id that was not used before."""
        self._pids += 1
        return self._pids

    def draw_last_words(self, signal: int | None, words: str) -> LastWords:
        """Return what a process leaves that fails now."""
        percent = 0 if self.is_calm else self.faults.record_percent
        return draw_last_words(self._words, percent, signal, words, self.unix_ms())

    def draw_record(self) -> LastWords:
        """Return the error that a process records now, while it runs."""
        return draw_record(self._words, self.unix_ms())

    def group(self, job_id: JobId, header: RoundHeader) -> Group:
        """Return the group of a round."""
        key = (job_id, header)
        if key not in self.groups:
            plan = next(job for job in self.jobs if job.job_id == job_id)
            self.groups[key] = Group(key, plan.work_ms, plan.is_doomed)
        return self.groups[key]

    def join(self, group: Group) -> None:
        """Let the workers of a round begin to work once all of them run."""
        header = group.key[1]
        if group.is_joined or group.is_broken or len(group.living) < header.world_size:
            return
        group.is_joined = True
        self.meetings.begin(group)
        self.keys.begin(group)
        self.progress.begin(group)
        if self.is_finishing:
            self.finish(group, 0)
        elif group.work_ms is not None and not self.is_calm:
            self.finish(group, group.work_ms)

    def finish(self, group: Group, work_ms: int) -> None:
        """Let the workers of a group exit with 0 after their work."""
        for process in group.living:
            ended = partial(self._finish_one, process)
            self.clock.after(work_ms + self.rng.randint(0, STRAGGLE_MS_MAX), ended)

    def _finish_one(self, process: Process) -> None:
        if process.is_alive and not process.group.is_broken and self.is_calm == self.is_finishing:
            process.agent.workers.end(process, 0, None)

    def break_group(self, process: Process) -> None:
        """Let the peers of a process that died notice it, or hang."""
        group = process.group
        group.is_broken = True
        for peer in group.living:
            if self.happens(self.faults.collateral_percent):
                words = CUT_OFF if self.happens(self.faults.victim_percent) else ""
                failed = partial(peer.agent.workers.end, peer, 1, None, words)
                self.clock.after(self.rng.randint(1, COLLATERAL_MS_MAX), failed)

    # --- phases ---

    def settle_down(self) -> None:
        """Stop all faults and mend what is broken."""
        self.is_calm = True
        self.faults = calm(self.faults)
        self.disk.calm()
        self.progress.standing.calm()
        self.note("calm")
        for host in self.hosts:
            self.network.release(host)
            if host.agent is not None:
                self.clock.after(0, partial(host.agent.freeze, 0))
        # Neither a cordon nor a long quarantine ends by itself in time.
        if self.fleet is None:
            self.start_coordinator()
            self._take_nodes_back()
        else:
            self.fleet.calm()
            self._keep_taking_back()

    def finish_work(self) -> None:
        """Let every worker finish, now and in every round that is still to come."""
        self.is_finishing = True
        self.note("finishing")
        for group in list(self.groups.values()):
            if group.is_joined and not group.is_broken:
                self.finish(group, 0)
