"""One simulated worker process, and what the workers of one round are to each other.

They begin to work when all of them run, and when one dies the others fail too, or hang.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rallypoint.agent.core.desired import RunOrder
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.round import RoundHeader
from sim.world.last_words import LastWords

if TYPE_CHECKING:
    from sim.world.node import Agent, Host

NOTHING_LEFT = LastWords()
RoundKey = tuple[JobId, RoundHeader]


@dataclass(slots=True, eq=False)
class Process:
    """One worker process."""

    pid: int
    host: Host
    agent: Agent
    order: RunOrder
    local_rank: int
    group: Group
    is_alive: bool = True
    signalled: bool = False
    """The agent has signalled it."""
    is_blocked: bool = False
    """It has survived SIGKILL."""
    exit_code: int | None = None
    signal: int | None = None
    left: LastWords = NOTHING_LEFT
    """Complete once its agent learns of its end."""
    record: LastWords | None = None
    """The error that it recorded while it ran; its age is that when the agent found it."""
    recorded_ms: int = 0
    found_ms: int | None = None
    """When the agent took that for the worker's failure; None if something else came first."""
    started_ms: int | None = None
    """When its agent learned of its start."""
    asked_ms: int | None = None
    """When its agent first asked to signal it."""
    signalled_ms: int | None = None
    """When the helper first signalled or killed it."""
    ended_ms: int = 0
    """When it ended; 0 while it lives."""
    told_ms: int | None = None
    """When its agent learned of its end."""

    def note_signal(self, at_ms: int) -> None:
        """Note that the helper signals or kills it, if that is the first time."""
        if self.signalled_ms is None:
            self.signalled_ms = at_ms

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.order.assignment.first_rank + self.local_rank

    @property
    def has_survived(self) -> bool:
        """It has ended with 0, and not because of a signal after it had recorded an error."""
        if self.exit_code != 0 or self.found_ms is None:
            return self.exit_code == 0
        held = self.agent.state.held
        is_held = held is not None and held.order is self.order
        if held is None or not is_held or held.signalled_ms is None:
            return True
        times_ms = [one for one in (self.signalled_ms, held.drained_ms) if one is not None]
        return self.ended_ms < min(times_ms, default=self.ended_ms + 1)


@dataclass(slots=True, eq=False)
class Group:
    """The processes of one round, wherever they run."""

    key: RoundKey
    work_ms: int | None
    """How long they work once all run; None: until the seed ends."""
    is_doomed: bool
    """Its workers fail early."""
    processes: list[Process] = field(default_factory=list)
    is_joined: bool = False
    """All of them have run at the same time."""
    is_broken: bool = False
    """One of them has died before its work was done."""

    @property
    def living(self) -> list[Process]:
        """The processes that live, in order of their start."""
        return [process for process in self.processes if process.is_alive]
