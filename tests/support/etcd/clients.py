"""Clients of a cluster, and calls whose answers are lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from rallypoint.server.etcd.address import parse_address
from rallypoint.server.etcd.client import EtcdClient
from support.etcd.cluster import Cluster

Connect = Callable[..., EtcdClient]


@asynccontextmanager
async def connecting() -> AsyncIterator[Connect]:
    """Yield what makes a client of a cluster; close all of them at the end."""
    made: list[EtcdClient] = []

    def connect(cluster: Cluster, prefix: str = "/p", options: str = "") -> EtcdClient:
        hosts = ",".join(cluster.endpoints)
        made.append(EtcdClient(parse_address(f"etcd://{hosts}{prefix}{options}")))
        return made[-1]

    try:
        yield connect
    finally:
        for client in made:
            await client.close()


def lost(
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, details: str = "Connection reset by peer"
) -> grpc.aio.AioRpcError:
    """Return the error of a call whose answer was lost, or another one."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details=details)


def lose_answers(client: EtcdClient, times: int) -> None:
    """Let the next transactions be carried out and their answers be lost."""
    left = times
    endpoint = client.endpoints.current
    commit = endpoint.keys.Txn

    async def commit_in_vain(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        answer = await commit(*arguments, **named)
        if left > 0:
            left -= 1
            raise lost()
        return answer

    endpoint.keys.Txn = commit_in_vain


def fail_from(client: EtcdClient, first: int) -> None:
    """Let transactions from number `first` on never reach etcd: the process dies there."""
    done = 0
    endpoint = client.endpoints.current
    commit = endpoint.keys.Txn

    async def commit_until(*arguments: Any, **named: Any) -> Any:
        nonlocal done
        done += 1
        if done > first:
            raise Died
        return await commit(*arguments, **named)

    endpoint.keys.Txn = commit_until


class Died(Exception):
    """The process is killed before this call."""
