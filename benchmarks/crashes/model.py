"""What a job must show after everything that was injected: rounds, runs, verdicts and cordons."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from rallypoint.v1 import job_pb2, round_pb2, verdict_pb2

OPEN = job_pb2.OUTCOME_OPEN
KEPT_ROUNDS = 64
"""Rounds that a coordinator remembers of a job."""


@dataclass(frozen=True, slots=True)
class Blame:
    """What a verdict must say."""

    cause: str
    node: str
    consequence: str
    rank: int = -1
    end: str = ""
    """How the culprit ended: `exit 7` or `signal 9`; empty: no worker failed."""

    def outranks(self, earlier: Blame) -> bool:
        """Return whether this is the cause, although another worker has failed before.

        As docs/failures.md says: 1 without a traceback shows no cause, and SIGKILL does.
        """
        return earlier.end == "exit 1" and self.end.startswith("signal")


@dataclass(frozen=True, slots=True)
class Period:
    """A round that has ended."""

    number: int
    run: int
    begin: str
    end: str
    nodes: tuple[str, ...]
    restarts: int
    """Charged when it was sealed."""
    blame: Blame | None


@dataclass(frozen=True, slots=True)
class Life:
    """A run."""

    run: int
    outcome: str
    restarts: int
    round: int


@dataclass(slots=True)
class Model:
    """The truth about a job, as far as the benchmark has caused it."""

    run: int = 0
    round: int = 0
    begin: str = ""
    """Why the latest round began."""
    members: tuple[str, ...] = ()
    """Nodes of the round that runs, sorted; empty: none runs."""
    restarts: int = 0
    is_open: bool = False
    blame: Blame | None = None
    """The verdict of the run."""
    ended: list[Period] = field(default_factory=list)
    runs: list[Life] = field(default_factory=list)
    """Those that have ended."""
    cordons: dict[str, str] = field(default_factory=dict)
    """Reasons, by node."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failures of nodes and their workers, by node."""

    def open_run(self, members: tuple[str, ...]) -> None:
        """Begin a run with its first round."""
        self.run += 1
        self.round += 1
        self.begin, self.members, self.restarts = "FIRST", members, 0
        self.is_open, self.blame = True, None

    def end_round(self, why: str, blame: Blame | None = None) -> None:
        """End the round that runs."""
        self.ended.append(
            Period(self.round, self.run, self.begin, why, self.members, self.restarts, blame)
        )
        self.blame = blame or self.blame

    def form(self, why: str, members: tuple[str, ...]) -> None:
        """Begin the next round, after the end of the one before."""
        self.round += 1
        self.begin, self.members = why, members

    def close(self, outcome: str, blame: Blame | None = None) -> None:
        """End the run."""
        self.blame = blame or self.blame
        self.runs.append(Life(self.run, outcome, self.restarts, self.round))
        self.is_open, self.members = False, ()

    def compare(
        self,
        job: job_pb2.Job,
        rounds: list[job_pb2.RoundSummary],
        runs: list[job_pb2.RunSummary],
    ) -> list[str]:
        """Return how a job differs from this; `rounds` and `runs` have the latest first."""
        wrong: list[str] = []

        def expect(what: str, expected: object, found: object) -> None:
            if expected != found:
                wrong.append(f"{job.job_id}: {what} should be {expected} and is {found}")

        expect("run", self.run, job.run)
        expect("restart count", self.restarts, job.restart_count)
        expect("phase", "RUNNING" if self.is_open else "CLOSED", _phase(job.phase))
        if self.is_open:
            expect("round", self.round, job.round.header.number)
            expect("begin", self.begin, _reason(job.round.header.reason))
            names = tuple(sorted(member.node_name for member in job.round.members))
            expect("members", self.members, names)
            expect("nodes", self.members, tuple(sorted(node.name for node in job.nodes)))
        expect("verdict", self.blame, _blame(job.verdict) if job.HasField("verdict") else None)
        cordons = {one.node_name: one.reason for one in job.health if one.cordoned}
        expect("cordons", self.cordons, cordons)
        failures = {one.node_name: one.failure_count for one in job.health if one.failure_count}
        expect("failures of nodes", dict(self.failures), failures)
        found = [_period(round) for round in reversed(rounds)]
        expect("number of ended rounds", min(len(self.ended), KEPT_ROUNDS), len(found))
        for expected, one in zip(reversed(self.ended), reversed(found), strict=False):
            expect(f"round {expected.number}", expected, one)
        ended = [_life(run) for run in reversed(runs) if run.outcome != OPEN]
        expect("ended runs", self.runs[len(self.runs) - len(ended) :], ended)
        return wrong

    def adopt(
        self,
        job: job_pb2.Job,
        rounds: list[job_pb2.RoundSummary],
        runs: list[job_pb2.RunSummary],
    ) -> None:
        """Take over what a job shows; the arguments are those of `compare`."""
        self.run, self.restarts = job.run, job.restart_count
        self.is_open = not job.HasField("closed_at")
        self.members = ()
        if self.is_open:
            self.round, self.begin = job.round.header.number, _reason(job.round.header.reason)
            self.members = tuple(sorted(member.node_name for member in job.round.members))
        self.blame = _blame(job.verdict) if job.HasField("verdict") else None
        self.cordons = {one.node_name: one.reason for one in job.health if one.cordoned}
        failures = {one.node_name: one.failure_count for one in job.health if one.failure_count}
        self.failures = Counter(failures)
        self.ended = [_period(round) for round in reversed(rounds)]
        self.runs = [_life(run) for run in reversed(runs) if run.outcome != OPEN]

    def lose_instead(self, node: str) -> None:
        """Change the last end of a round: the node was lost, and did not leave."""
        blame = Blame("NODE_LOST", node, "REFORMED")
        self.ended[-1] = replace(self.ended[-1], end="NODE_LOST", blame=blame)
        self.begin, self.blame = "NODE_LOST", blame
        self.failures[node] += 1

    def charge(self, blame: Blame) -> None:
        """Charge a restart for a failure."""
        self.end_round("WORKER_FAILED", blame)
        self.restarts += 1
        self.failures[blame.node] += 1

    def spend(self, blame: Blame) -> None:
        """End the run with a failure for which no restart is left."""
        blame = replace(blame, consequence="BUDGET_SPENT")
        self.end_round("WORKER_FAILED", blame)
        self.close("FAILED", blame)
        self.failures[blame.node] += 1


def _phase(phase: job_pb2.JobPhase.ValueType) -> str:
    return job_pb2.JobPhase.Name(phase).removeprefix("JOB_PHASE_")


def _reason(reason: round_pb2.RoundReason.ValueType) -> str:
    return round_pb2.RoundReason.Name(reason).removeprefix("ROUND_REASON_")


def _blame(verdict: verdict_pb2.Verdict) -> Blame:
    cause = verdict_pb2.VerdictCause.Name(verdict.cause)
    consequence = verdict_pb2.VerdictConsequence.Name(verdict.consequence)
    rank, end, node = -1, "", verdict.node_name
    if verdict.HasField("culprit"):
        exit = verdict.culprit.exit
        rank, node = verdict.culprit.rank, verdict.culprit.node_name
        end = f"signal {exit.signal}" if exit.HasField("signal") else f"exit {exit.exit_code}"
    return Blame(
        cause.removeprefix("VERDICT_CAUSE_"),
        node,
        consequence.removeprefix("VERDICT_CONSEQUENCE_"),
        rank,
        end,
    )


def _period(round: job_pb2.RoundSummary) -> Period:
    return Period(
        round.number,
        round.run,
        _reason(round.begin_reason),
        _reason(round.end_reason),
        tuple(sorted(round.node_names)),
        round.restart_count,
        _blame(round.verdict) if round.HasField("verdict") else None,
    )


def _life(run: job_pb2.RunSummary) -> Life:
    outcome = job_pb2.Outcome.Name(run.outcome).removeprefix("OUTCOME_")
    return Life(run.run, outcome, run.restart_count, run.round)
