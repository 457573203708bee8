"""What can happen to the coordinator: the inputs of `step`, already validated at the edge.

The shell provides identifiers and times. `session` and `connection` name the sender: an input from
any connection but the session's newest is refused.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.server.core.model.barrier import BarrierKey, Expected, Participant
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.keyspace import Write
from rallypoint.server.core.model.node import HeldRound, Identity, KnownAddresses
from rallypoint.server.core.model.round import Milestone
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.worker import WorkerExit


class Hello(Struct, frozen=True):
    """A node opened a connection; its Hello carries everything that the node holds."""

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
    held: HeldRound | None
    ready: ReadyPort | None
    draining: tuple[int, str] | None = None
    """Set when the node drains: the time left, in ms, and the reason."""
    known_addresses: KnownAddresses = KnownAddresses()
    is_proven: bool = False
    """It carries the token of a Welcome that this coordinator sent to the session."""


class ReadyPort(Struct, frozen=True):
    """Nothing of `round` or an earlier one runs on the node, and this port is reserved."""

    round: int
    port: int


class Sender(Struct, frozen=True):
    """The session and connection that an input came on, and the number of the report."""

    session: SessionId
    connection: int
    epoch: int
    sequence: int = 0
    """Number of the report, from 1 without gaps; 0 for other messages."""


class Heartbeat(Struct, frozen=True):
    """The agent is alive."""

    sender: Sender
    number: int = 0


class Ready(Struct, frozen=True):
    """The node is clean."""

    sender: Sender
    ready: ReadyPort


class Started(Struct, frozen=True):
    """All local workers run."""

    sender: Sender
    round: int
    pids: tuple[int, ...]


class Reached(Struct, frozen=True):
    """Every worker of the node has reached milestones."""

    sender: Sender
    round: int
    milestones: tuple[tuple[Milestone, int], ...]
    """Each with how long ago the last worker reached it, in ms."""


class StartFailed(Struct, frozen=True):
    """A worker could not be started."""

    sender: Sender
    round: int
    text: str
    """Why."""
    is_permanent: bool = False
    """No restart can cure it on this node."""


class Leaving(Struct, frozen=True):
    """The node leaves its round: the agent is exiting and stops the workers."""

    sender: Sender
    round: int
    text: str
    """Why."""


class Recorded(Struct, frozen=True):
    """Workers have recorded an error and still run."""

    sender: Sender
    round: int
    exits: tuple[WorkerExit, ...]
    """Without exit codes and signals."""


class Progress(Struct, frozen=True):
    """Whether the workers of a node make progress."""

    sender: Sender
    round: int
    still_ms: int | None
    """Time since the latest progress of any of them; None: they make progress."""


class Exited(Struct, frozen=True):
    """Workers ended."""

    sender: Sender
    round: int
    exits: tuple[WorkerExit, ...]


class Succeeded(Struct, frozen=True):
    """Every local worker ended with 0, unprompted."""

    sender: Sender
    round: int


class Blocked(Struct, frozen=True):
    """Processes survived SIGKILL, or something else keeps the node from its next round."""

    sender: Sender
    round: int
    pids: tuple[int, ...]
    text: str = ""
    """What else; empty: processes survived SIGKILL."""


class Draining(Struct, frozen=True):
    """The node drains; its workers have been notified."""

    sender: Sender
    time_ms: int
    reason: str


class Goodbye(Struct, frozen=True):
    """The node leaves on purpose and is clean."""

    sender: Sender
    text: str


class NewerReport(Struct, frozen=True):
    """A report of a kind that this version does not know: its agent is newer."""

    sender: Sender


class Broken(Struct, frozen=True):
    """The stream of this connection ended."""

    sender: Sender
    is_relay: bool = False
    """The relay that carried it is gone: the agent itself may be well, and comes another way."""


class DrainNode(Struct, frozen=True):
    """An operator requests the drain of a node."""

    job_id: JobId
    name: NodeName
    time_ms: int
    reason: str
    request_id: str = ""
    """The same for every attempt; empty: it is not remembered."""


class Claim(Struct, frozen=True):
    """What the token of a worker says: it belongs to this round."""

    job_id: JobId
    run: int
    round: int
    token: str
    """The token itself. It is a secret."""
    is_signed: bool
    """This coordinator has made it."""


class Arrive(Struct, frozen=True):
    """A participant arrives at a barrier."""

    claim: Claim
    key: BarrierKey
    participant: Participant
    expected: Expected
    """With the count 0 for all ranks or nodes of the round."""
    timeout_ms: int
    """How long it wants to wait at most, 1 or more."""
    request_id: str
    """The same for every attempt of this arrival."""
    generation: int = 0
    """The only one at which it may count; 0: whichever is open."""
    epoch: int = 0
    """For another attempt: the highest epoch that the worker knew at the first; 0: the first."""
    payload: bytes = b""

    @property
    def job_id(self) -> JobId:
        """The job of the barrier."""
        return self.key.job_id


class WriteKeys(Struct, frozen=True):
    """A worker changes keys."""

    claim: Claim
    round: int
    """The keys belong to this round; 0: to the run."""
    writes: tuple[Write, ...]
    """In order; at least one."""
    request_id: str
    """The same for every attempt of this request; empty: there is only one."""
    answer_id: str
    """Different for every call; the answer carries it."""
    digest: bytes = b""
    """Of the writes; the same for every attempt."""
    is_repeated: bool = False
    """It was sent before; what the worker knew before the first attempt follows."""
    known_epoch: int = 0
    known_revision: int = 0

    @property
    def job_id(self) -> JobId:
        """The job of the keys."""
        return self.claim.job_id


class Progressed(Struct, frozen=True):
    """Training has reached a step."""

    claim: Claim
    step: int
    """Counted over all rounds of the run, from 1 on; 0: none was reached."""
    step_ago_ms: int = 0

    @property
    def job_id(self) -> JobId:
        """The job of the worker."""
        return self.claim.job_id


class CreateJob(Struct, frozen=True):
    """An operator opens the next run of a job before its first agent comes."""

    job_id: JobId
    spec: JobSpec
    request_id: str = ""
    """The same for every attempt; empty: it is not remembered."""


class CancelJob(Struct, frozen=True):
    """An operator ends the run."""

    job_id: JobId
    run: int
    """Only this run; 0: whichever is the latest."""
    reason: str
    """Why, in words; may be empty."""
    request_id: str = ""
    """The same for every attempt; empty: it is not remembered."""
    give_up_silent_nodes: bool = False
    """Lose the nodes that do not answer now, and not when their leases end."""


class RestartJob(Struct, frozen=True):
    """An operator restarts the workers."""

    job_id: JobId
    round: int
    """Only this round; 0: whichever runs."""
    reason: str
    """Why, in words; may be empty."""
    request_id: str = ""
    """The same for every attempt; empty: it is not remembered."""


class UpdateJob(Struct, frozen=True):
    """An operator changes the specification of the run; None leaves a field as it is."""

    job_id: JobId
    min_nodes: int | None = None
    max_nodes: int | None = None
    max_restarts: int | None = None
    revision: int = 0
    """Refuse it if the specification was changed after this revision; 0: do not."""
    request_id: str = ""
    """The same for every attempt; empty: it is not remembered."""
    reason: str = ""
    """Why, in words."""
    require_nodes: bool = False
    """Refuse it if a running round would stop to wait for nodes that are not there."""

    @property
    def fields(self) -> frozenset[str]:
        """The fields that it changes."""
        names = ("min_nodes", "max_nodes", "max_restarts")
        return frozenset(name for name in names if getattr(self, name) is not None)


class DeleteJob(Struct, frozen=True):
    """An operator deletes a job that has ended."""

    job_id: JobId
    run: int = 0
    """Only this run; 0: whichever is the latest."""
    request_id: str = ""
    """The same for every attempt; empty: it is not remembered."""


class TimePassed(Struct, frozen=True):
    """A deadline may have expired."""


class Stalled(Struct, frozen=True):
    """The coordinator itself stalled; journal time was held back by the same time."""

    late_ms: int


class Examined(Struct, frozen=True):
    """The evidence of a round has been taken. It may be about a round that is over."""

    job_id: JobId
    round: int
    rank: int | None
    """The rank that the others wait for; None: the evidence names none."""
    text: str
    """What it says, as one line; or why there is none."""
    is_conclusive: bool = False
    """It shows that the workers wait for something that does not come."""


class JobBroken(Struct, frozen=True):
    """The shell caught a broken invariant of this job; the job must end."""

    job_id: JobId
    report: str


class Cordon(Struct, frozen=True):
    """An operator keeps a node out of later rounds, attached or not."""

    job_id: JobId
    name: NodeName
    reason: str
    """Why, in words; may be empty."""
    request_id: str = ""
    """The same for every attempt; empty: it is not remembered."""


class Uncordon(Struct, frozen=True):
    """An operator removes a cordon, a quarantine, and the failures that led to it."""

    job_id: JobId
    name: NodeName
    request_id: str = ""
    """The same for every attempt; empty: it is not remembered."""
    reason: str = ""
    """Why, in words."""


Operation = (
    CreateJob | CancelJob | RestartJob | UpdateJob | DeleteJob | DrainNode | Cordon | Uncordon
)
Report = (
    Ready
    | Started
    | Reached
    | Progress
    | StartFailed
    | Recorded
    | Exited
    | Succeeded
    | Blocked
    | Draining
    | Leaving
    | Goodbye
    | NewerReport
)
Request = Operation | Arrive | WriteKeys | Progressed
Senderless = Request | TimePassed | Stalled | Examined | JobBroken
"""What no agent has sent."""
Input = Hello | Heartbeat | Report | Broken | Senderless
