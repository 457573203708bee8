"""For programs with torch: a rendezvous back end of `torchrun`, and a store for the workers.

What a name needs is imported at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.torch.store.store import Store

__all__ = ["Store"]

_LATER = {"Store": "rallypoint.torch.store.store"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
