"""The desired state of a node, in the shapes of the protocol's `DesiredState`."""

from __future__ import annotations

from msgspec import Struct


class RoundHeader(Struct, frozen=True):
    """What all members of a round share."""

    number: int
    run: int
    """Number of the job's run."""
    world_size: int
    """Workers of all nodes."""
    group_world_size: int
    """Nodes."""
    master_addr: str
    master_port: int
    restart_count: int
    reason: int
    """Why the round began: the protocol's number, which a Hello returns unchanged."""
    epoch: int
    """Epoch of the coordinator that sealed the round."""


class Assignment(Struct, frozen=True):
    """The ranks of one node in a round. The ranks of its workers follow the first without a gap."""

    group_rank: int
    first_rank: int
    local_world_size: int
    role: str
    first_role_rank: int
    role_world_size: int


class RunOrder(Struct, frozen=True):
    """Exactly the workers of this round run."""

    header: RoundHeader
    assignment: Assignment
    max_restarts: int
    worker_token: str = ""
    """Proof that a caller is a worker of this round. A secret."""
    reached_at: tuple[str, ...] = ()
    """Where other nodes have reached this host, if not at the address of this node; for the log."""

    @property
    def number(self) -> int:
        """Number of the round."""
        return self.header.number


def without_round(workers: int, role: str) -> RunOrder:
    """Return an order that stands for any round of a node: only what all have in common counts."""
    header = RoundHeader(0, 0, workers, 1, "", 0, 0, 0, 0)
    return RunOrder(header, Assignment(0, 0, workers, role, 0, workers), 0)


class DesiredStop(Struct, frozen=True):
    """Nothing of this round or an earlier one runs."""

    round: int
    shutdown_timeout_ms: int
    text: str
    """Why, as one line."""


class DesiredStandby(Struct, frozen=True):
    """Nothing runs."""

    spare: bool
    """A round runs, and it has no slot for this node."""


class DesiredEnd(Struct, frozen=True):
    """Nothing runs, and the agent exits: the protocol's `Released` and `Finished`."""

    exit_code: int
    text: str
    """Why, as one line."""
    is_release: bool = False
    """The run continues without this node."""


class DesiredDrain(Struct, frozen=True):
    """The node has to leave the job; part of a desired state."""

    until_ms: int
    """When workers that still run are stopped."""
    reason: str


Desired = RunOrder | DesiredStop | DesiredStandby | DesiredEnd


class Notice(Struct, frozen=True):
    """Announces a change of the round to its workers."""

    kind: str
    """"growth" or "drain"."""
    node: str
    """The node that leaves; empty for growth, and when it is this one."""
    reason: str
    until_ms: int
    """When the change happens at the latest."""
    is_here: bool = False
    """This node is the one that leaves."""
