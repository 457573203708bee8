"""The clients that several users in one process share, so that they have one channel together.

A client is open until its last user has given it back. A forked child has none of its parent's.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from rallypoint.client.sync import Client

OUTAGE_S = 600.0
"""How long a call without a timeout waits for a coordinator: as long as agents do that could start
no workers."""


class _Key(NamedTuple):
    target: str
    token: str
    epoch: int


class Borrowed:
    """A client that others may have borrowed too. Threads may share it."""

    def __init__(self, key: _Key, client: Client) -> None:
        """Count its first user."""
        self.key = key
        self.client = client
        self.users = 1


_lock = threading.Lock()
_borrowed: dict[_Key, Borrowed] = {}
_inherited: list[Borrowed] = []
"""Of the process that this one was forked from: it has none of the threads that would end them."""


def borrow(target: str, token: str, epoch: int) -> Borrowed:
    """Return the client of this process for a coordinator and a token; `give_back` it once.

    Args:
        target: host:port of the coordinator, or of several with commas in between.
        token: of a worker.
        epoch: of the coordinator that formed its round; 0: not known.
    """
    key = _Key(target, token, epoch)
    with _lock:
        borrowed = _borrowed.get(key)
        if borrowed is None:
            client = Client(target, token=token, epoch=epoch, limit_s=OUTAGE_S)
            borrowed = _borrowed[key] = Borrowed(key, client)
        else:
            borrowed.users += 1
        return borrowed


def give_back(borrowed: Borrowed) -> None:
    """Use a client no more; the last user closes it."""
    with _lock:
        borrowed.users -= 1
        is_last = borrowed.users == 0
        if is_last and _borrowed.get(borrowed.key) is borrowed:
            del _borrowed[borrowed.key]
    if is_last:
        borrowed.client.close()


def _forget() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _inherited.extend(_borrowed.values())
    _borrowed.clear()


os.register_at_fork(after_in_child=_forget)
