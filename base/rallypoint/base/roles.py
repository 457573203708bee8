"""What a caller of the coordinator may be: one list for the auth file and for new tokens."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """What a caller may do; the order is that of the contract."""

    AGENT = "agent"
    OPERATOR = "operator"
    VIEWER = "viewer"
    WORKER = "worker"
    RELAY = "relay"


GRANTED_ROLES = tuple(role for role in Role if role is not Role.WORKER)
"""Roles that an auth file grants; a caller without limits has them all. The role of a worker
belongs to a round, so only the round's token gives it."""
GRANTED_ROLE_NAMES = " or ".join(
    (", ".join(role.value for role in GRANTED_ROLES[:-1]), GRANTED_ROLES[-1].value)
)
"""The same for people: "agent, operator, viewer or relay"."""
