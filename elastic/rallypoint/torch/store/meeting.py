"""`synchronize`, `get_all` and `barrier` of TorchElastic, with one call for each rank.

The ranks meet at a barrier of the coordinator, and data goes with it. So a rank that is missing, or
cannot come any more, is known at once and by name, and a key prefix can be used again and again.

The coordinator knows the ranks of a round. Where the callers are others, such as the workers of a
`torchrun` whose agents have joined the round, they meet by names that stand for their ranks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

from rallypoint.client.errors import BarrierBroken, Forgotten, RallypointError
from rallypoint.client.values import BreakReason
from rallypoint.torch.store.connection import Deadline, Tries
from rallypoint.torch.store.encoding import encode_key
from rallypoint.torch.store.failures import StoreError, to_store_error
from rallypoint.torch.store.store import Store, to_bytes
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2

PAYLOAD_BYTES_MAX = 16_384
"""Longest payload of a rank at a barrier."""
PAYLOADS_BYTES_MAX = 131_072
"""Longest payloads of all ranks together."""
NAMED_RANKS_MAX = 1_024
"""Most participants that a barrier can name."""
NAME_BYTES_MAX = 255
"""Longest name of a barrier."""
_HERE, _AT_KEY = b"=", b"+"
"""How a payload begins: the data follow, or the name of the key that holds them."""


def synchronize(
    store: Store,
    data: str | bytes,
    rank: int,
    world_size: int,
    key_prefix: str,
    timeout: float = 300,
) -> list[bytes]:
    """Wait for all ranks; return the data of each, by rank.

    Args:
        store: the same keys on every rank.
        data: at most 8 MiB. Up to 16 KiB, and 128 KiB from all ranks together, take one call.
        rank: of this caller, from 0 on.
        world_size: how many ranks call this.
        key_prefix: the same on every rank; it may be used again.
        timeout: how long to wait, in s.

    Raises:
        DistStoreError: when ranks are missing; it names them.
    """
    caller, data = _Caller(store, rank, world_size, Deadline(timeout)), to_bytes(data)
    room = min(PAYLOAD_BYTES_MAX, PAYLOADS_BYTES_MAX // world_size) - len(_HERE)
    if len(data) <= room:
        return _exchange(caller, _HERE + data, key_prefix)
    key = f"rallypoint.synchronize/{secrets.token_hex(8)}"
    store.set(key, data)
    try:
        return _exchange(caller, _AT_KEY + key.encode(), key_prefix)
    finally:
        store.delete_key(key)


def get_all(store: Store, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """Return the values of the keys `{prefix}0`, `{prefix}1`, … of all ranks; wait for them.

    Rank 0 does not wait until the others have them: the store is not in its process.

    Args:
        store: the same keys on every rank.
        rank: of this caller.
        prefix: what the keys begin with.
        world_size: how many keys there are.

    Raises:
        DistStoreError: when some do not exist before the store's timeout; it names them.
    """
    return store.multi_get([f"{prefix}{one}" for one in range(world_size)])


def barrier(
    store: Store,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: int | None = None,
    rank_tracing_decoder: Callable[[int], str] | None = None,
    trace_timeout: float = 10,
) -> None:
    """Wait until so many callers have arrived.

    Args:
        store: the same keys on every rank.
        world_size: how many call this.
        key_prefix: the same for all of them; it may be used again.
        barrier_timeout: how long to wait, in s.
        rank: of this caller; without it, an error cannot name those that are missing.
        rank_tracing_decoder: what an error calls a rank, such as its host.
        trace_timeout: not used: nothing has to be traced.

    Raises:
        DistStoreError: when ranks are missing; it names them.
        ValueError: when there is a decoder but no rank.
    """
    if rank is None and rank_tracing_decoder is not None:
        raise ValueError("rank_tracing_decoder needs a rank")
    caller = _Caller(store, rank, world_size, Deadline(barrier_timeout))
    _meet(caller, b"", key_prefix, rank_tracing_decoder)


class _Caller(NamedTuple):
    """Who waits for all ranks."""

    store: Store
    rank: int | None
    world_size: int
    deadline: Deadline


def _exchange(caller: _Caller, payload: bytes, key_prefix: str) -> list[bytes]:
    """Return the data of all ranks."""
    name = f"{key_prefix}/synchronize"
    payloads = _meet(caller, payload, name)
    at_keys = [one[1:].decode() for one in payloads if one.startswith(_AT_KEY)]
    if not at_keys:
        return [one[1:] for one in payloads]
    found = dict(zip(at_keys, caller.store.multi_get(at_keys), strict=True))
    # The keys go when all ranks have read them.
    _meet(caller, b"", f"{name}/read")
    return [found[one[1:].decode()] if one.startswith(_AT_KEY) else one[1:] for one in payloads]


def _meet(
    caller: _Caller, payload: bytes, key_prefix: str, describe: Callable[[int], str] | None = None
) -> list[bytes]:
    """Wait for all ranks; return the payload of each, by rank."""
    try:
        return _arrive(caller, payload, caller.store.prefix + key_prefix)
    except BarrierBroken as error:
        raise _broken(caller, error, key_prefix, describe) from error
    except RallypointError as error:
        raise to_store_error(error, caller.store.connection.job_id) from error


def _arrive(caller: _Caller, payload: bytes, name: str) -> list[bytes]:
    connection = caller.store.connection
    tries = Tries(connection, caller.deadline)
    while True:
        participant, expected = _place(*caller[:3])
        try:
            answer = connection.client.arrive(
                connection.job_id,
                encode_key(name, NAME_BYTES_MAX),
                participant,
                expected=expected,
                payload=payload,
                scope=connection.scope,
                timeout_s=caller.deadline.left_s(),
            )
            return list(answer.payloads)
        except Forgotten:
            # The coordinator has started again. Those that wait all arrive once more.
            if not tries.pause():
                raise


def _place(
    store: Store, rank: int | None, world_size: int
) -> tuple[barrier_pb2.Participant, barrier_pb2.Expected | None]:
    """Return who arrives, and who must arrive; None: all ranks of the round."""
    if rank is None:
        someone = barrier_pb2.Participant(name=secrets.token_hex(8))
        return someone, barrier_pb2.Expected(count=world_size)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size}")
    if store.connection.world_size == world_size:
        return barrier_pb2.Participant(rank=rank), None
    who = barrier_pb2.Participant(name=_name(rank))
    if world_size > NAMED_RANKS_MAX:
        return who, barrier_pb2.Expected(count=world_size)
    everyone = barrier_pb2.Participants(names=map(_name, range(world_size)))
    return who, barrier_pb2.Expected(participants=everyone)


def _name(rank: int) -> str:
    """Return a name that sorts as the rank does."""
    return f"{rank:08d}"


def _broken(
    caller: _Caller,
    error: BarrierBroken,
    key_prefix: str,
    describe: Callable[[int], str] | None,
) -> RuntimeError:
    """Return what is raised for a barrier that has failed, in the words of torch."""
    store, rank, world_size, deadline = caller
    where = "" if rank is None else f" on rank {rank}"
    if error.reason is not BreakReason.OVERDUE:
        return StoreError(f"barrier{where}, for key prefix: {key_prefix}: {error}")
    missing = [*error.missing.ranks, *map(int, error.missing.names if rank is not None else ())]
    if describe is None:
        nodes = _find_nodes(store, error.missing.ranks)
        shown = [f"{one} on node {nodes[one]}" if one in nodes else f"{one}" for one in missing]
    else:
        shown = [describe(one) for one in missing]
    more = error.missing_count - len(shown)
    shown += [f"{more} more" if shown else f"{more} of unknown rank"] if more > 0 else []
    return StoreError(
        f"Timed out waiting on barrier{where}, for key prefix: {key_prefix} "
        f"(world_size={world_size}, missing_ranks=[{', '.join(shown)}], "
        f"timeout={deadline.limit_s:g})"
    )


def _find_nodes(store: Store, ranks: tuple[int, ...]) -> dict[int, str]:
    try:
        return store.connection.find_nodes(ranks)
    except RallypointError:
        return {}  # the failure is raised anyway, without the names of nodes
