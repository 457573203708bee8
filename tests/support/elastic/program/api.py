"""The names of the API that a case runs with: torch's or ours. Nothing else differs.

`CASE_API` names it. A variable and not an argument, because workers import the cases again.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

VARIABLE = "CASE_API"
TORCH, RALLYPOINT = "torch", "rallypoint"
MODULES = {
    RALLYPOINT: ("rallypoint.elastic",),
    TORCH: (
        "torch.distributed.launcher.api",
        "torch.distributed.elastic.agent.server.api",
        "torch.distributed.elastic.agent.server.local_elastic_agent",
        "torch.distributed.elastic.multiprocessing",
        "torch.distributed.elastic.multiprocessing.errors",
        "torch.distributed.elastic.rendezvous",
        "torch.distributed.elastic.rendezvous.registry",
    ),
}


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        for module in MODULES[os.environ[VARIABLE]]:
            found = import_module(module)
            if name in getattr(found, "__all__", ()):  # modules of torch import the names of others
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
