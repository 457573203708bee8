"""What can happen to the coordinator: the inputs of `step`, already validated at the edge.

Identifiers and clocks are the shell's; an input carries what it needs. `session` and `connection`
say who speaks: anything from a connection older than the newest one known is refused. What every
node says in every round is a named tuple, which is made in a third of a dataclass's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rallypoint.server.core.model import JobId, NodeName, SessionId, WorkerExit
from rallypoint.server.core.node import Claim, Identity


@dataclass(frozen=True, slots=True)
class Hello:
    """A node opened a connection and told everything that it holds."""

    identity: Identity
    connection: int
    epoch: int
    """Highest epoch that the agent has seen; 0 for none."""
    run: int
    """Run that it takes part in; 0 for none."""
    coordinator_id: str
    coordinator_durable: bool
    acknowledged: int
    """Highest report sequence that any coordinator acknowledged to it."""
    revision: int
    """Highest revision of the desired state that it applied."""
    claim: Claim | None
    ready: ReadyPort | None
    draining: tuple[int, str] | None = None
    """That it wants to leave: the time that it has left, in ms, and why."""


class ReadyPort(NamedTuple):
    """Nothing of `round` or an earlier one runs on the node, and this port is reserved."""

    round: int
    port: int


class Sender(NamedTuple):
    """Who speaks, on which connection, with which report."""

    session: SessionId
    connection: int
    epoch: int
    sequence: int = 0
    """Number of the report, from 1 without gaps; 0 for what is not kept."""


class Heartbeat(NamedTuple):
    """The agent lives."""

    sender: Sender
    number: int = 0


class Ready(NamedTuple):
    """The node is clean."""

    sender: Sender
    ready: ReadyPort


class Started(NamedTuple):
    """All local workers run."""

    sender: Sender
    round: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The round was not started here."""

    sender: Sender
    round: int
    leaving: bool
    text: str


@dataclass(frozen=True, slots=True)
class Exited:
    """Workers ended."""

    sender: Sender
    round: int
    exits: tuple[WorkerExit, ...]


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Every local worker ended with 0, unprompted."""

    sender: Sender
    round: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """Processes survived SIGKILL."""

    sender: Sender
    round: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Draining:
    """The node wants to leave; its workers have been told."""

    sender: Sender
    time_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The node leaves on purpose and is clean."""

    sender: Sender
    text: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The stream of this connection ended, for whatever reason."""

    sender: Sender


@dataclass(frozen=True, slots=True)
class DrainNode:
    """An operator asks a node to leave."""

    job_id: JobId
    name: NodeName
    time_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing else happened; what has expired is due."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """The coordinator itself was away; journal time has been held back by as much."""

    late_ms: int


@dataclass(frozen=True, slots=True)
class JobBroken:
    """The shell caught a broken invariant of this job; the job must not go on."""

    job_id: JobId
    report: str


@dataclass(frozen=True, slots=True)
class Cordon:
    """An operator sets a node aside, attached or not."""

    job_id: JobId
    name: NodeName
    reason: str
    """Why, in words; may be empty."""


@dataclass(frozen=True, slots=True)
class Uncordon:
    """An operator takes a cordon back, and a quarantine with its failures."""

    job_id: JobId
    name: NodeName


Report = Ready | Started | Refused | Exited | Succeeded | Blocked | Draining | Goodbye
Request = DrainNode | Cordon | Uncordon
Input = Hello | Heartbeat | Report | Broken | Request | TimePassed | Stalled | JobBroken
