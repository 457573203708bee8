"""For programs with torch: a rendezvous back end of `torchrun`, and a store for the workers.

Importing it teaches torch `init_process_group(init_method="rallypoint://")`. What a name needs is
imported at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rallypoint.torch.store.init_method import register

if TYPE_CHECKING:
    from rallypoint.torch.store.meeting import barrier, get_all, synchronize
    from rallypoint.torch.store.store import Store

__all__ = ["Store", "barrier", "get_all", "synchronize"]

_LATER = {
    "Store": "rallypoint.torch.store.store",
    "barrier": "rallypoint.torch.store.meeting",
    "get_all": "rallypoint.torch.store.meeting",
    "synchronize": "rallypoint.torch.store.meeting",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


register()
