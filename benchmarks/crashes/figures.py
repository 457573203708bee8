"""What each crash of a coordinator amounts to, in the tables of the results."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.results import Results

ATTACHED_S_MAX = 3.0
"""How long after its start a coordinator may take to have all agents again."""
SERVED_S_MAX = 5.0
"""How long after a crash another owner may take to answer for a job."""
HANDED_OVER_S_MAX = 1.5
"""The same after SIGTERM."""
KINDS = {"kill": "SIGKILL", "freeze": "SIGSTOP, then SIGCONT", "end": "SIGTERM"}
BARS = {"kill": SERVED_S_MAX, "freeze": SERVED_S_MAX, "end": HANDED_OVER_S_MAX}
AIMS, DONE, PHASES, ALONE = "aimed at", "done meanwhile", "doing, by the journal", "one coordinator"
SHARED = "several coordinators"


@dataclass(slots=True)
class Crash:
    """One crash."""

    aim: str
    done: list[str] = field(default_factory=list)
    """What was done to the jobs."""

    def add_to(self, results: Results) -> None:
        """Add it to the tables."""
        results.count(AIMS, self.aim, "crashes")
        for text in self.done:
            results.count(DONE, text, "times")


@dataclass(slots=True)
class Death(Crash):
    """SIGKILL for a coordinator that is alone."""

    phases: list[str] = field(default_factory=list)
    """What the jobs were doing, by the journal."""
    is_in_append: bool = False
    """The journal ends with a batch that the coordinator never knew to be written."""
    away_s: float = 0.0
    listening_s: float = 0.0
    """From the start of the next coordinator."""
    attached_s: list[float] = field(default_factory=list)
    """From there, until each agent was attached. Empty: it was killed before."""
    rss_mb: float = 0.0
    journal_bytes: int = 0

    def add_to(self, results: Results) -> None:
        Crash.add_to(self, results)
        for phase in sorted(set(self.phases)):
            results.count(PHASES, phase, "crashes")
        if self.is_in_append:
            results.count(PHASES, "inside an append", "crashes")
        results.add(ALONE, "each", "memory", "MB", self.rss_mb)
        results.add(ALONE, "each", "files of the journal", "MB", self.journal_bytes / 1e6)
        if self.attached_s:
            last_s = max(self.attached_s)
            results.add(ALONE, "each", "start until it listens", "s", self.listening_s)
            results.add(ALONE, "each", "until an agent is attached", "s", *self.attached_s)
            bar = f"until all are attached (the bar for 99 of 100 is {ATTACHED_S_MAX:g} s)"
            results.add(ALONE, "each", bar, "s", last_s)
            results.add(ALONE, "each", "the same since it listens", "s", last_s - self.listening_s)


@dataclass(slots=True)
class Fault(Crash):
    """One fault of a coordinator that has others beside it."""

    kind: str = ""
    """One of KINDS."""
    jobs: int = 0
    """Those that it owned."""
    served_s: list[float] = field(default_factory=list)
    """Until another owner answered for each of them."""
    attached_s: list[float] = field(default_factory=list)
    """Until that had all agents of each."""
    away_s: float = 0.0
    """Until it was back, or continued."""
    balanced_s: float = 0.0
    """From there, until it had its share again."""
    disturbed: list[str] = field(default_factory=list)
    """Agents of other owners' jobs that have connected again meanwhile."""

    def add_to(self, results: Results) -> None:
        Crash.add_to(self, results)
        row = f"{KINDS[self.kind]} (the bar until another one answers is {BARS[self.kind]:g} s)"
        results.add(SHARED, row, "jobs of the owner", "", self.jobs)
        results.add(SHARED, row, "until another one answers", "s", *self.served_s)
        results.add(SHARED, row, "until it has all agents", "s", *self.attached_s)
        if self.balanced_s:
            results.add(SHARED, row, "back until shares are equal", "s", self.balanced_s)
        disturbed = "agents of other owners' jobs that had to connect again"
        results.add(SHARED, row, disturbed, "", len(self.disturbed))
