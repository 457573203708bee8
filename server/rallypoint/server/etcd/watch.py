"""Watches keys: every change from a revision on, until the watch breaks.

A watch of a member that was suspended looks like one without changes. So the member is asked for
its progress every second, and a watch that does not answer breaks, as one that has lost its leader
does. The caller begins again, after the last revision that was seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from aetcd import rpc

from rallypoint.server.etcd.channels import Endpoint
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdCompacted, EtcdError, EtcdTimedOut, to_error
from rallypoint.server.etcd.translate import from_events
from rallypoint.server.etcd.values import Change

PROGRESS_S = 1.0
"""How often a quiet watch is asked whether it lives."""
SILENT_S = 2.5
"""A watch that answers nothing for so long is broken."""

Seen = Callable[[tuple[Change, ...]], None]
"""Takes changes, in order."""


async def watch(client: EtcdClient, key: bytes, end: bytes, from_revision: int, seen: Seen) -> None:
    """Call `seen` with every change of keys from `key` up to `end`, until the watch breaks.

    Args:
        client: of the cluster.
        key: the first key.
        end: the first key that is not watched.
        from_revision: the first change of interest.
        seen: must not block.

    Raises:
        EtcdCompacted: when `from_revision` has been compacted away: read the keys again.
        EtcdError: when the watch is broken: begin again after the last revision seen.
    """
    endpoint = client.endpoints.current
    call = endpoint.watches.Watch(metadata=(*client.metadata(), ("hasleader", "true")))
    create = rpc.WatchCreateRequest(key=key, range_end=end, start_revision=from_revision)
    async with asyncio.TaskGroup() as tasks:
        asker = tasks.create_task(_ask(call, rpc.WatchRequest(create_request=create)))
        try:
            broken = await _read(client, endpoint, call, seen)
        finally:
            asker.cancel()
            call.cancel()
    client.endpoints.leave(endpoint)
    raise broken


async def _ask(call: Any, create: Any) -> None:
    """Begin the watch, then ask for its progress; its reader notices how the call ends."""
    request = create
    try:
        while True:
            await call.write(request)
            await asyncio.sleep(PROGRESS_S)
            request = rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return


async def _read(client: EtcdClient, endpoint: Endpoint, call: Any, seen: Seen) -> EtcdError:
    """Read until the watch breaks; return why."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(SILENT_S) as limit:
            async for answer in call:
                limit.reschedule(loop.time() + SILENT_S)
                client.check_cluster(answer, endpoint)
                if answer.compact_revision:
                    return EtcdCompacted("etcd has compacted the watched revision away")
                if answer.canceled:
                    code = grpc.StatusCode.UNAVAILABLE
                    return to_error(code, answer.cancel_reason, endpoint.name)
                # The revision of an answer without events is not used: before etcd 3.5.8 it may be
                # ahead of events that are still to come.
                if answer.events:
                    seen(from_events(answer.events))
    except EtcdError as error:
        return error
    except grpc.aio.AioRpcError as error:
        return to_error(error.code(), error.details() or "", endpoint.name)
    except TimeoutError:
        return EtcdTimedOut(f"the watch at {endpoint.name} does not answer")
    return EtcdTimedOut(f"the watch at {endpoint.name} was ended")
