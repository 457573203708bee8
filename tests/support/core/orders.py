"""A round as an agent is told of it, for tests of what it does with one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rallypoint.agent.core.model import RunOrder

_ORDER = RunOrder(
    number=1,
    run=1,
    world_size=2,
    group_world_size=1,
    master_addr="10.0.0.1",
    master_port=20_000,
    restart_count=0,
    reason=1,
    epoch=1,
    group_rank=0,
    first_rank=0,
    local_world_size=2,
    role="default",
    first_role_rank=0,
    role_world_size=2,
    max_restarts=0,
)


def run_order(**changes: Any) -> RunOrder:
    """Return a first round of two workers on this node alone, but for `changes`."""
    return replace(_ORDER, **changes)
