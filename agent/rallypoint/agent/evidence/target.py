"""A worker whose evidence is collected."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.agent.output.outputs import WorkerOutput


class Target(Struct, frozen=True):
    """A live worker."""

    worker_id: int
    """The number by which the helper knows it."""
    rank: int
    """Its global rank."""
    local_rank: int
    world_size: int
    """Workers of the round: ranks 0 to world_size - 1."""
    pid: int
    """Its process, which was not reaped when this was made."""
    prefix: str
    """Of the files of an armed worker; empty: it was not asked to arm itself."""
    output: WorkerOutput

    @property
    def stacks(self) -> str:
        """The file into which it writes its stacks."""
        return f"{self.prefix}.stacks"

    @property
    def socket(self) -> str:
        """The socket of torch's worker server."""
        return f"{self.prefix}.sock"
