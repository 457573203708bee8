"""Asks every endpoint of etcd how it is, to say more than that a call has failed."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
from aetcd import rpc

from rallypoint.server.etcd.channels import Endpoint
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import CORRUPT, OUT_OF_SPACE, EtcdRefusedUser

ANSWER_LIMIT_S = 1.0
"""A member answers such a question without the others, within milliseconds."""
NAMES_MAX = 3
"""Endpoints that a text names."""


async def find_silent(client: EtcdClient) -> tuple[str, ...]:
    """Return the endpoints that do not answer, as `host:port`; takes up to ANSWER_LIMIT_S."""
    return tuple(
        name
        for name, answer in await _ask_all(client)
        if isinstance(answer, grpc.aio.AioRpcError) and answer.code() in _SILENCE
    )


async def _ask_all(client: EtcdClient) -> list[tuple[str, Any]]:
    """Return the status of each endpoint, or the error instead of it, by name."""

    async def ask(endpoint: Endpoint) -> tuple[str, Any]:
        try:
            return endpoint.name, await endpoint.upkeep.Status(
                rpc.StatusRequest(), timeout=ANSWER_LIMIT_S, metadata=client.metadata()
            )
        except grpc.aio.AioRpcError as error:
            return endpoint.name, error

    return await asyncio.gather(*map(ask, client.endpoints))


async def find_lossy(client: EtcdClient) -> str:
    """Return which members may lose what they have confirmed, in one line; empty: none is known.

    Takes up to ANSWER_LIMIT_S.
    """
    lossy = {
        name: answer.version
        for name, answer in await _ask_all(client)
        if not isinstance(answer, grpc.aio.AioRpcError) and is_lossy(answer.version)
    }
    if not lossy:
        return ""
    return (
        f"etcd {next(iter(lossy.values()))} at {_join(tuple(lossy))} can lose confirmed writes"
        " when it is killed: use 3.4, or 3.5.6 and newer"
    )


def is_lossy(version: str) -> bool:
    """Return whether members of this version may lose what they have confirmed: 3.5.0 to 3.5.5."""
    return re.match(r"3\.5\.[0-5](?!\d)", version) is not None


async def explain(client: EtcdClient, why: str) -> str:
    """Return why etcd cannot be used, in one line.

    Args:
        client: of the cluster.
        why: what a call has failed with.
    """
    silent = await find_silent(client)
    count = len(client.endpoints)
    if not silent or count == 1:
        return why
    return (
        f"etcd cannot be reached: {len(silent)} of {count} endpoints do not answer"
        f" ({_join(silent)}):"
        " see that more than half of its members run, and check the network"
    )


def _join(names: tuple[str, ...]) -> str:
    return ", ".join((*names[:NAMES_MAX], *(("…",) if len(names) > NAMES_MAX else ())))


async def find_alarm(client: EtcdClient) -> str:
    """Return why etcd takes no change although it answers, in one line; empty when it does.

    Raises:
        EtcdError: when that is unknown.
    """
    request = rpc.AlarmRequest(action=rpc.AlarmRequest.GET)

    async def ask(endpoint: Endpoint, timeout_s: float) -> object:
        return await endpoint.upkeep.Alarm(request, timeout=timeout_s, metadata=client.metadata())

    try:
        answer = await client.attempt(ask, ANSWER_LIMIT_S)
    except EtcdRefusedUser:
        return ""  # versions that ask for an administrator: a write that fails says it
    alarms = {one.alarm for one in answer.alarms}
    if rpc.NOSPACE in alarms:
        return OUT_OF_SPACE
    return CORRUPT if rpc.CORRUPT in alarms else ""


_SILENCE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
