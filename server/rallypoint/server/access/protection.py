"""How a coordinator is protected, and how it says so."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.server.access.caller import Proof
from rallypoint.server.access.gate import CURRENT
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.wire.access import Role
from rallypoint.wire.durations import to_timestamp
from rallypoint.wire.mapping import Mapper, numbers_of

_ROLES = numbers_of(Role, coordinator_pb2.AccessRole.DESCRIPTOR)
_PROOFS = numbers_of(Proof, coordinator_pb2.CallerProof.DESCRIPTOR, {Proof.TOKEN: "ACCESS_TOKEN"})


class Protection(Struct, frozen=True):
    """What protects a coordinator."""

    tls: bool = False
    """It listens with TLS."""
    client_certificates: bool = False
    """Clients must show a certificate."""
    authenticates: bool = False
    """It asks who calls."""


OPEN = Protection()
_ACCESS = Mapper(Protection, coordinator_pb2.CoordinatorAccess)


def describe(response: coordinator_pb2.GetCoordinatorResponse, protection: Protection) -> None:
    """Add to an answer who has called, and how the coordinator is protected.

    Without any protection nothing is added.
    """
    response.coordinator.ClearField("access")  # of another coordinator, if any
    if protection != OPEN:
        response.coordinator.access.CopyFrom(_ACCESS.to_message(protection))
    entry = CURRENT.get()
    if entry is None or entry.caller is None:
        return
    caller = entry.caller
    response.caller.name = caller.name
    response.caller.roles.extend(_ROLES[role] for role in caller.roles)
    response.caller.proof = _PROOFS[caller.proof]
    response.caller.jobs.extend(caller.jobs)
    if caller.expires_ms is not None:
        response.caller.expires_at.CopyFrom(to_timestamp(caller.expires_ms))
