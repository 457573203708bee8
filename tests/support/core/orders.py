"""The order of a round, for tests of the agent."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rallypoint.agent.core.desired import Assignment, RoundHeader, RunOrder

_HEADER = RoundHeader(
    number=1,
    run=1,
    world_size=2,
    group_world_size=1,
    master_addr="10.0.0.1",
    master_port=20_000,
    restart_count=0,
    reason=1,
    epoch=1,
)
_ASSIGNMENT = Assignment(
    group_rank=0,
    first_rank=0,
    local_world_size=2,
    role="default",
    first_role_rank=0,
    role_world_size=2,
)


def run_order(*, max_restarts: int = 0, **changes: Any) -> RunOrder:
    """Return a first round of two workers on this node alone, but for `changes`.

    Each change is a field of the header or of the assignment.
    """
    of_header = {name: changes.pop(name) for name in _HEADER.__struct_fields__ if name in changes}
    return RunOrder(replace(_HEADER, **of_header), replace(_ASSIGNMENT, **changes), max_restarts)
