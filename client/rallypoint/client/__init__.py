"""Typed clients of the coordinator: `Client` blocks, `AsyncClient` is for asyncio.

What a name needs is imported at its first use: the errors and values need no gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rallypoint.client.errors import RallypointError
from rallypoint.client.values import BreakReason, Participants, Scope

if TYPE_CHECKING:
    from rallypoint.client.aio import AsyncClient
    from rallypoint.client.sync import Client

__all__ = ["AsyncClient", "BreakReason", "Client", "Participants", "RallypointError", "Scope"]

_LATER = {"AsyncClient": "rallypoint.client.aio", "Client": "rallypoint.client.sync"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
