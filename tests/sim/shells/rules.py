"""The rules of a seed, judged from outside: by environments, exits, outcomes and the log.

No rule asks the coordinator or an agent what it believes. A rule that is broken ends the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rallypoint.agent.round.helper_watch import FENCE_MARGIN_MS
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, job_service_pb2, verdict_pb2
from sim.shells.loop import NS, Loop
from sim.shells.workers import Group, Worker

if TYPE_CHECKING:
    from sim.shells.node import AgentProcess
    from sim.shells.world import World

QUIET_NS = 3 * NS
"""A job counts as undisturbed after this long without a fault around it."""
FILED = frozenset({"StartsTogether", "OutcomeIsPushed"})
"""Rules about what may wait for files."""
EXPECTED_ERRORS = frozenset({"helper_killed", "helper_lost"})
"""Events of level error that a fault causes."""
FORBIDDEN = frozenset({"library_failed", "stream_end_dropped"})
"""Events of a lower level that no seed may cause."""
ALONE = "all workers exited with 0;"
"""Last words of an agent that was alone in its round, with a success that was not confirmed."""
SIGTERM_EXIT = 128 + 15


class Rules:
    """All rules, by the events that they handle."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: dict[str, int] = {}
        """How often a rule about time was applied."""
        self._disturbed_ns: dict[str, int] = {}
        """Until when a job is disturbed."""
        self._was_quiet: dict[str, bool] = {}
        """Whether the job was undisturbed until the last disturbance."""
        self._disturbances: dict[str, int] = {}
        """How often it was."""
        self._start_failed: set[str] = set()
        """Jobs in which a worker could not be started."""
        self._failed: dict[Group, int] = {}
        """Rounds that a worker's own failure ended, and the disturbances of the job by then."""
        self._own_failures: dict[Group, list[tuple[int, int]]] = {}
        """Of each round, when which rank failed by itself, in ns."""
        self._ranks: set[tuple[Group, int]] = set()
        self._worlds: dict[Group, tuple[str, ...]] = {}
        self._last: dict[tuple[str, str], Group] = {}
        """The latest round of each run."""
        self._outcomes: dict[tuple[int, str, int], int] = {}
        self._seen: dict[str, tuple[tuple[int, int], int, int]] = {}
        """What readers have seen: run and round, restart count, outcome."""

    def _require(self, rule: str, holds: bool, text: str) -> None:
        if not holds:
            self.world.violate(rule, text)

    # --- quiet ---

    def disturbed(self, job_id: str, for_s: float) -> None:
        """Note that something goes wrong for so long that concerns a job."""
        self._was_quiet[job_id] = self._is_quiet(job_id)
        until_ns = self.world.schedule.now_ns + int(for_s * NS)
        self._disturbed_ns[job_id] = max(self._disturbed_ns.get(job_id, 0), until_ns)
        self._disturbances[job_id] = self._disturbances.get(job_id, 0) + 1

    def _is_quiet(self, job_id: str) -> bool:
        since_ns = self._disturbed_ns.get(job_id, 0)
        return self.world.schedule.now_ns - since_ns >= QUIET_NS

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _soon(self, rule: str, group: Group, holds: Callable[[], str], times: int = 1) -> None:
        """Require that `holds()` soon has no problem, in a job that is undisturbed until then."""
        waits_for_files = self.world.rates.files_s and rule in FILED
        if self._is_quiet(group.job_id) and not waits_for_files:
            self._within(rule, group, holds, times * self.world.rates.push_s)

    def _within(self, rule: str, group: Group, holds: Callable[[], str], delay_s: float) -> None:
        """Require it after a delay, unless something disturbs the job meanwhile."""
        seen = self._disturbances.get(group.job_id, 0)

        def look() -> None:
            if self._disturbances.get(group.job_id, 0) != seen:
                return
            self._count(rule)
            missing = holds()
            self._require(rule, not missing, f"round {group.key}: {missing}")

        self.world.schedule.after(delay_s, look)

    # --- workers ---

    def spawned(self, worker: Worker) -> None:
        """A worker is about to exist; `worker.group` does not hold it yet."""
        group, env = worker.group, worker.env
        shared = tuple(
            env[name] for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
        )
        one = self._worlds.setdefault(group, shared)
        self._require("OneWorld", one == shared, f"{group.key}: {one} and {shared}")
        is_in = 0 <= worker.rank < group.world_size
        self._require("RanksOnce", is_in, f"rank {worker.rank} of {group.world_size}")
        is_new = (group, worker.rank) not in self._ranks
        self._require("RanksOnce", is_new, f"rank {worker.rank} of {group.key} starts twice")
        self._ranks.add((group, worker.rank))
        self._check_node(worker)
        self._check_fence(worker)
        if not group.workers:
            self._check_budget(group)
            self._soon("StartsTogether", group, lambda: self._missing(group))

    def _missing(self, group: Group) -> str:
        if group.is_broken or any(worker.is_signalled for worker in group.workers):
            return ""
        started = len(group.workers)
        return "" if started == group.world_size else f"{started} of {group.world_size} started"

    def _check_node(self, worker: Worker) -> None:
        for other in worker.owner.host.workers:
            is_same = other.group is worker.group and other.owner is worker.owner
            text = f"{worker.group.key} starts while pid {other.pid} of {other.group.key} lives"
            self._require("OneRoundPerNode", is_same, text)
        for old in worker.owner.agent_groups:
            is_later = old.round < worker.group.round or old is worker.group
            self._require("NumbersGrow", is_later, f"{worker.group.key} after {old.key}")
        worker.owner.agent_groups[worker.group] = None

    def _check_fence(self, worker: Worker) -> None:
        if not worker.owner.host.job.fence_ms:
            return
        for group in self.world.groups.values():
            if group.job_id != worker.group.job_id or group is worker.group:
                continue
            for other in group.living:
                text = f"{worker.group.key} starts while pid {other.pid} of {group.key} lives"
                # Nothing kills on a host where both the agent and the helper stand still. An agent
                # that continues gives its helper its time again.
                loop = other.owner.loop
                was_frozen = self.world.schedule.now_ns < loop.thaws_ns + int(
                    FENCE_MARGIN_MS * NS / 1_000
                )
                stands_still = (loop.is_frozen or was_frozen) and other.owner.helper.is_frozen
                self._require("FenceHolds", other.is_blocked or stands_still, text)

    def _check_budget(self, group: Group) -> None:
        """A restart is charged for a round in which a worker failed by itself, and only then."""
        job = next(job for job in self.world.jobs if job.job_id == group.job_id)
        most = job.spec.max_restarts
        self._require("BudgetHolds", group.restart_count <= most, f"{group.key} over {most}")
        key = group.job_id, group.key[1]
        before = self._last.get(key)
        self._last[key] = group
        if before is None:
            return
        if before.round >= group.round:
            # A coordinator without memory may begin a run again. Without a fence, the next round
            # does not wait for a node that was given up: that may act on its last order late.
            may_be_late = not job.fence_ms and not self._is_quiet(group.job_id)
            text = f"{group.key} after {before.key}"
            self._require("NumbersGrow", may_be_late or not self.world.disk.is_durable, text)
            return
        rise = group.restart_count - before.restart_count
        text = f"{before.key} had {before.restart_count}, {group.key} has {group.restart_count}"
        between = [
            one
            for one in self.world.groups.values()
            if (one.job_id, one.key[1]) == key and before.round <= one.round < group.round
        ]
        has_failed = any(one.is_broken or one.has_died for one in between)
        has_failed = has_failed or group.job_id in self._start_failed
        # A round in which no worker started at all is not among the groups.
        self._require("ChargedOnce", rise <= group.round - before.round, text)
        if rise > 0:
            self._require("ChargedForFailures", has_failed, text)
        is_next = group.round == before.round + 1
        if is_next and self._failed.get(before) == self._disturbances.get(group.job_id, 0):
            self._count("FailuresAreCharged")
            self._require("FailuresAreCharged", rise == 1, text)

    def start_failed(self, process: AgentProcess) -> None:
        """A worker could not be started, which is charged like a failure of it."""
        self._start_failed.add(process.host.job.job_id)

    def failed(self, worker: Worker) -> None:
        """A worker failed by itself: all others of its round must soon hear SIGTERM."""
        group = worker.group
        failure = self.world.schedule.now_ns, worker.rank
        self._own_failures.setdefault(group, []).append(failure)
        if group.has_joined:
            if self._is_quiet(group.job_id) and not self._may_grow(group):
                self._failed.setdefault(group, self._disturbances.get(group.job_id, 0))
            self._soon("FailuresArePushed", group, lambda: self._unstopped(group))

    def _may_grow(self, group: Group) -> bool:
        """Return whether the job may stop the round for new nodes, which costs no restart."""
        members = {worker.owner for worker in group.workers}
        return any(
            host.living is not None and host.living not in members
            for host in self.world.hosts
            if host.job.job_id == group.job_id
        )

    def lost(self, process: AgentProcess) -> None:
        """An agent was killed, and its streams were reset: its peers must soon stop."""
        job_id = process.host.job.job_id
        if not self._was_quiet.get(job_id) or not process.agent_groups:
            return
        group = list(process.agent_groups)[-1]
        if group.has_joined and group.living:
            delay_s = self.world.timing.reconnect_grace_ms / 1000 + self.world.rates.push_s
            self._within("LossesArePushed", group, lambda: self._unstopped(group), delay_s)

    def _unstopped(self, group: Group) -> str:
        left = [worker.pid for worker in group.living if not worker.is_signalled]
        return f"pids {left} were not stopped" if left else ""

    def succeeded(self, worker: Worker) -> None:
        """A worker ended with 0: with the last one, all agents must soon exit."""
        group = worker.group
        done = {one.rank for one in group.workers if one.is_success}
        if len(done) == group.world_size:
            agents = {one.owner: None for one in group.workers}
            self._soon("OutcomeIsPushed", group, lambda: self._attached(list(agents)), 2)

    def _attached(self, agents: list[AgentProcess]) -> str:
        left = [agent.loop.name for agent in agents if not agent.is_gone]
        return f"{left} have not exited" if left else ""

    # --- outcomes ---

    def outcome_received(self, process: AgentProcess, finished: agent_pb2.Finished) -> None:
        """An agent learned the outcome of its run."""
        world, job_id = self.world, process.host.job.job_id
        run = process.agent.run_number
        self._require("WelcomeIsFirst", run > 0, f"{process.loop.name} knows no run")
        # A coordinator without memory may differ.
        epoch = 0 if world.disk.is_durable else process.agent.state.epoch
        key = epoch, job_id, run
        first = self._outcomes.setdefault(key, finished.outcome)
        self._require("OutcomeIsOne", first == finished.outcome, f"{job_id}: {first}, {finished}")
        if finished.verdict.HasField("culprit"):
            self._check_culprit(job_id, run, finished.verdict)
        if finished.outcome == job_pb2.OUTCOME_SUCCEEDED:
            whole = [
                group
                for group in world.groups.values()
                if (group.job_id, group.key[1]) == (job_id, str(run))
                and {one.rank for one in group.workers if one.is_success}
                == set(range(group.world_size))
            ]
            self._require("SuccessIsEarned", bool(whole), f"{job_id} run {run}")

    def _check_culprit(self, job_id: str, run: int, verdict: verdict_pb2.Verdict) -> None:
        """The worker that failed first is named, and no failure is lost."""
        slack_ms = self.world.dates_ms
        if slack_ms is None:
            return
        place = job_id, run, verdict.round
        (group,) = [
            one
            for one in self.world.groups.values()
            if (one.job_id, int(one.key[1]), one.round) == place
        ]
        failures = self._own_failures[group]
        first_ns = failures[0][0] + slack_ms * 1_000_000
        possible = {rank for at_ns, rank in failures if at_ns <= first_ns}
        named = verdict.culprit.rank
        self._count("TrueCulprit")
        text = f"rank {named} is named, {failures} failed: {verdict.text}"
        self._require("TrueCulprit", named in possible, text)
        count = 1 + verdict.collateral_count
        self._require("NoFailureIsLost", count == len(failures), f"{count} of {failures} are known")

    def exited(self, process: AgentProcess) -> None:
        """An agent exits by itself."""
        left = [worker.pid for worker in process.helper.living]
        self._require("ExitsClean", not left, f"{process.loop.name} leaves {left}")
        finished, code = process.finished, process.exit_code
        allowed = {1, 75}
        if process.host.job.job_id in self.world.drained_jobs:
            allowed = {0, 1, 75, SIGTERM_EXIT}
        elif process.was_terminated:
            allowed = {0, 1, 75, SIGTERM_EXIT}
        elif finished is not None:
            allowed = {0 if finished.outcome == job_pb2.OUTCOME_SUCCEEDED else 1}
        elif process.agent.exit_text.startswith(ALONE):
            allowed = {0}
        text = f"{process.loop.name} exits {code}: {process.agent.exit_text}"
        self._require("ExitCode", code in allowed, text)

    def ended(self, loop: Loop) -> None:
        """A process ends in order: nothing of it may be left or lost."""
        left = [str(task.get_coro()) for task in loop.pending()]
        self._require("NoTaskLeft", not left, f"{loop.name}: {left}")
        self.killed(loop)

    def killed(self, loop: Loop) -> None:
        """A process ends by force: until then, no exception of it may be lost."""
        lost = loop.unhandled()
        self._require("NothingIsLost", not lost, f"{loop.name}: {lost}")

    def continued(self, passed_ms: int) -> None:
        """A coordinator that starts again writes its first batch: no wait has become shorter."""
        self._count("WaitsStand")
        self._require("WaitsStand", passed_ms == 1, f"{passed_ms} ms of journal time have passed")

    def answered(self, job_id: str, raw: bytes | None) -> None:
        """A reader got the answer to GetJob, or a refusal."""
        if raw is None:
            return
        job = job_service_pb2.GetJobResponse.FromString(raw).job
        self._count("AnswersAreWhole")
        self._require("AnswersAreWhole", job.job_id == job_id and job.run > 0, f"{job}")
        if self.world.disk.is_durable:
            self._check_seen(job)

    def _check_seen(self, job: job_pb2.Job) -> None:
        """What someone has read of a job is never taken back."""
        rounds = {one.number: one.end_reason for one in job.history}
        seen = (job.run, max([job.round.header.number, *rounds])), job.restart_count, job.outcome
        before = self._seen.get(job.job_id)
        self._seen[job.job_id] = seen
        if before is None:
            return
        is_run = before[0][0] == seen[0][0]
        has_ended = before[2] != job_pb2.OUTCOME_OPEN
        is_later = before[0] <= seen[0] or not rounds
        is_later = is_later and (not is_run or before[1] <= seen[1])
        is_later = is_later and not (is_run and has_ended and before[2] != seen[2])
        self._require("NothingIsTakenBack", is_later, f"{job.job_id} was {before}, now {seen}")

    # --- the log ---

    def logged(self, method: str, event: str, fields: dict[str, object], name: str) -> None:
        """A process logged an event."""
        is_bad = method in ("error", "exception", "critical") and event not in EXPECTED_ERRORS
        is_bad = is_bad or "incident" in fields or event in FORBIDDEN
        error = fields.get("exc_info")
        self._require("CleanLog", not is_bad, f"{name} logs {event} {fields} {error!r}")
        if event == "coordinator_reached_again":
            job_id = str(fields["job"])
            self._count("ConnectionsLast")
            self._require("ConnectionsLast", not self._is_quiet(job_id), f"{name}: {fields}")
        if event == "node_lost" and self.world.rates.is_patient:
            living = [host.living for host in self.world.hosts if host.living is not None]
            names = [
                one.agent.node_name
                for one in living
                if one.host.job.job_id == fields["job_id"]
                and one.agent.state.ending is None
                and one.agent.run_number  # else the coordinator does not know it yet
            ]
            is_there = fields["node"] in names
            self._require("NobodyIsLost", not is_there, f"{name} logs {event} {fields}")
