"""Evidence of made-up ranks: where they are, and how far they have come in their groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from rallypoint.base.ranges import to_ranges
from rallypoint.server.core.evidence.folding import fold
from rallypoint.server.core.model.evidence import (
    Collective,
    Evidence,
    Frame,
    GroupProgress,
    ProcessState,
    RankEvidence,
    RankRange,
    ThreadStack,
)

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
SCRIPT = "/home/me/train.py"
MAIN = Frame("main", SCRIPT, 120)
IN_STEP = (Frame("all_reduce", TORCH, 3004), Frame("step", SCRIPT, 90), MAIN)
"""Stack of a rank inside a collective."""
IN_LOAD = (Frame("load_batch", SCRIPT, 88), MAIN)
"""Stack of a rank that does something else."""
UNSEEN = ("no collectives: it did not answer within 1 s",)

Given = Mapping[int, RankEvidence | None]


class Group(NamedTuple):
    """A process group."""

    name: str
    members: tuple[RankRange, ...]
    description: str = ""

    def at(
        self,
        entered: int,
        completed: int | None = None,
        operation: str = "gloo:all_reduce",
        sizes: str = "[[1024]]",
    ) -> GroupProgress:
        """Return the progress of a rank; without `completed` it waits in what it entered last."""
        return GroupProgress(
            self.name,
            self.description,
            self.members,
            entered,
            max(0, entered - 1) if completed is None else completed,
            tuple(
                Collective(
                    number,
                    operation if number == entered else "gloo:all_reduce",
                    sizes if number == entered else "[[1024]]",
                    "Float",
                )
                for number in range(entered, max(0, entered - 3), -1)
            ),
        )


def make_group(name: str, members: Iterable[int], description: str = "") -> Group:
    """Return a process group of some ranks."""
    spans = to_ranges(members)
    return Group(name, tuple(RankRange(first, last) for first, last in spans), description)


def make_default(world_size: int) -> Group:
    """Return torch's default group."""
    return make_group("0", range(world_size), "default_pg")


def make_rank(
    *groups: GroupProgress,
    stack: tuple[Frame, ...] = IN_STEP,
    state: ProcessState = ProcessState.SLEEPING,
    waits_in: str = "",
    gaps: tuple[str, ...] = (),
) -> RankEvidence:
    """Return the evidence of one rank."""
    threads = (ThreadStack(True, stack),) if stack else ()
    return RankEvidence(
        state=state, waits_in=waits_in, threads=threads, groups=tuple(groups), gaps=gaps
    )


def make_world(
    world_size: int, rest: RankEvidence, others: Given
) -> dict[int, RankEvidence | None]:
    """Return the evidence of all ranks: `others`, and `rest` for the remaining ones."""
    return {rank: others.get(rank, rest) for rank in range(world_size)} | dict(others)


def fold_world(
    evidence: Given, world_size: int | None = None, timed_out: Collection[int] = ()
) -> Evidence:
    """Return what the evidence says."""
    size = len(evidence) if world_size is None else world_size
    return fold(
        evidence,
        world_size=size,
        round=4,
        reason="requested",
        took_ms=12,
        timed_out=timed_out,
    )
