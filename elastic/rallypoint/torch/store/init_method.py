"""`init_process_group(init_method="rallypoint://")`: the store of the worker that this process is.

`rallypoint://NAME` uses other keys than `rallypoint://`. A process group that is made again in the
same round gets fresh keys too, so it never reads the addresses of the one before: each process
counts, and all ranks have to make the groups equally often.

All groups of a round share one connection, also with `rallypoint.worker`. C++ may hold the stores
of groups that are gone, so these go only when the process belongs to another round. If a program
closes all stores that it has, the next group has another connection.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist

from rallypoint.worker import milestones
from rallypoint.worker.environment import Membership, read_membership

if TYPE_CHECKING:
    from rallypoint.torch.store.connection import Connection
    from rallypoint.torch.store.store import Store

SCHEME = "rallypoint"
NAME_BYTES_MAX = 80
"""Longest name; a longer one counts by its digest."""


class _Round:
    """What the process groups of this process share while it belongs to one round."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.pid = os.getpid()
        self.connection = _connect(membership)
        self.made: Counter[str] = Counter()
        """Process groups so far, by name."""


_lock = threading.Lock()
_current: _Round | None = None


def register() -> None:
    """Teach torch the scheme `rallypoint`, if it was built with torch.distributed."""
    if dist.is_available():
        dist.register_rendezvous_handler(SCHEME, join)  # type: ignore[attr-defined,no-untyped-call]


def join(url: str, timeout: timedelta | None = None, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Yield the store, the rank and the number of ranks, once.

    Args:
        url: such as "rallypoint://" or "rallypoint://NAME?rank=0&world_size=2". torch puts the
            arguments of `init_process_group` there; without them the environment counts.
        timeout: how long calls wait for keys; None: the store's own.

    Raises:
        NotAWorker: when no agent has started this process.
        ValueError: when there is no rank, or no number of ranks.
    """
    from rallypoint.torch.store.store import TIMEOUT

    parts = urlsplit(url)
    query = parse_qs(parts.query)
    rank, world_size = _number(query, "rank"), _number(query, "world_size")
    store = _make_store(parts.netloc, timeout or TIMEOUT)
    try:
        yield store, rank, world_size
    finally:
        # `init_process_group` keeps this generator until it returns or fails.
        if dist.is_initialized():
            milestones.note("process_group")
    raise RuntimeError("a store of rallypoint:// serves one process group")


def _make_store(name: str, timeout: timedelta) -> Store:
    """Return a store with fresh keys for the next process group of this name."""
    from rallypoint.torch.store.connection import leave_all
    from rallypoint.torch.store.encoding import encode_key
    from rallypoint.torch.store.store import LAUNCHERS, Store

    global _current
    membership = read_membership(launcher=LAUNCHERS)
    with _lock:
        current = _current
        if current is None or (current.membership, current.pid) != (membership, os.getpid()):
            if current is not None:
                leave_all(current.connection)
            current = _current = _Round(membership)
        elif current.connection.is_closed:
            current.connection = _connect(membership)
        name = encode_key(name, NAME_BYTES_MAX) if name else "default"
        current.made[name] += 1
        prefix = f"init/{name}/{current.made[name]}/"
        return Store.over(current.connection, prefix, timeout)


def _connect(membership: Membership) -> Connection:
    from rallypoint.client.values import Scope
    from rallypoint.torch.store.connection import Connection

    return Connection(*membership, Scope.ROUND, is_shared=True)


def _number(query: dict[str, list[str]], name: str) -> int:
    """Return what the caller wants, else what the environment says; torch writes -1 for none."""
    wanted = [found for found in query.get(name, []) if not found.startswith("-")]
    found = wanted[0] if wanted else os.environ.get(name.upper(), "")
    try:
        return int(found)
    except ValueError:
        raise ValueError(
            f"init_method rallypoint:// needs {name}: set {name.upper()}, or pass {name}="
        ) from None
