"""`rallypoint://` makes process groups again and again over one connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
import torch.distributed as dist

from rallypoint import worker
from rallypoint.torch.store import init_method
from rallypoint.torch.store.failures import StoreError
from rallypoint.worker import session as sessions
from support.stores.room import LIMIT_S, Room, rooms

TIMES = 6


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    """Be the only rank of a round."""
    with rooms(world_size=1) as room:
        enter(room, monkeypatch)
        yield room
        session = sessions._sessions.pop(os.getpid(), None)
        if session is not None:
            session.disconnect()


def enter(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the environment of a worker of the current round."""
    more = {"RANK": "0", "RALLYPOINT_NOTICE_FILE": "/nonexistent"}
    for name, value in (room.environ | more).items():
        monkeypatch.setenv(name, value)


def count_connections(room: Room) -> int:
    """Return how many sockets of this process are connected to the coordinator."""
    port, count = int(room.target.rpartition(":")[2]), 0
    for name in os.listdir("/proc/self/fd"):
        if not os.path.realpath(f"/proc/self/fd/{name}").rpartition("/")[2].startswith("socket:"):
            continue  # a socket of something else could not be made, nor its descriptor closed
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            count += one.family != socket.AF_UNIX and one.getpeername()[1] == port
    return count


def make_group() -> None:
    """Make the process group of all ranks, use it, and destroy it."""
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", init_method="rallypoint://", timeout=limit)
    dist.barrier()
    dist.destroy_process_group()


def test_process_groups_share_one_connection(room: Room) -> None:
    """However often they are made and destroyed, and with `rallypoint.worker`."""
    before, counts = count_connections(room), []
    for number in range(TIMES):
        make_group()
        worker.kv.put("k", b"%d" % number)
        counts.append(count_connections(room) - before)

    assert [1] * TIMES == counts


def test_stores_of_a_past_round_go(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that belongs to the next round keeps none of their connections."""
    before = count_connections(room)
    old, _, _ = next(init_method.join("rallypoint://?rank=0&world_size=1"))
    old.set("k", "v")
    room.begin_round()
    enter(room, monkeypatch)
    new, _, _ = next(init_method.join("rallypoint://?rank=0&world_size=1"))
    new.set("k", "new")
    with pytest.raises(StoreError, match="cannot be used: the client was closed"):
        old.get("k")

    assert b"new" == new.get("k")
    assert 1 == count_connections(room) - before


def test_a_round_outlives_its_closed_stores(room: Room) -> None:
    """The next store of the round has another connection, and fresh keys as always."""
    first, _, _ = next(init_method.join("rallypoint://?rank=0&world_size=1"))
    first.set("k", "old")
    first.close()
    second, _, _ = next(init_method.join("rallypoint://?rank=0&world_size=1"))

    assert not second.check(["k"])
    assert first.prefix != second.prefix
