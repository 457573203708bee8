"""A `torch.distributed.Store` at the coordinator, and what torch's stores are used for."""

from __future__ import annotations

from rallypoint.torch.store.store import Store

__all__ = ["Store"]
