"""Calls etcd: reads, transactions and leases, each with a deadline and typed errors.

Only the generated messages and stubs come from `aetcd`. Its client connects to one host without
TLS, never renews a token, gives a call no deadline, and gives a full database the same
error as a wrong argument; its watch reports no lost connection while it waits.

A call moves from endpoint to endpoint until its deadline. An attempt whose answer was lost may
still be carried out, later even than the attempt after it. So every call here must be one that may
come twice: a read, the end or renewal of a lease, or a transaction whose conditions fail once it
has happened. Its caller finds out from the branch `otherwise` which attempt it was.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
from aetcd import rpc

from rallypoint.base.log import get_logger
from rallypoint.server.etcd.address import EtcdAddress
from rallypoint.server.etcd.channels import Endpoint, Endpoints, read_file
from rallypoint.server.etcd.errors import (
    EtcdError,
    EtcdOtherCluster,
    EtcdRefusedUser,
    EtcdTimedOut,
    EtcdTokenExpired,
    to_error,
)
from rallypoint.server.etcd.translate import (
    from_range,
    from_transaction,
    to_range,
    to_transaction,
)
from rallypoint.server.etcd.values import (
    Condition,
    Get,
    Granted,
    KeyValue,
    Operation,
    Outcome,
    Ranged,
)

log = get_logger()

CALL_LIMIT_S = 5.0
"""Longest call, over all attempts: two elections, or every member of three suspended in turn."""
ATTEMPT_LIMIT_S = 1.0
"""Limit of the first attempt; each further round over all endpoints doubles it, for slow disks."""
PAUSE_S = 0.05
"""Pause after a failed attempt, with jitter: a member without a leader refuses at once."""
LEASE_IDS = 1 << 62
"""Ids of leases are drawn here, so that a grant whose answer was lost can be repeated."""

T = TypeVar("T")
Attempt = Callable[[Endpoint, float], Awaitable[T]]


class EtcdClient:
    """A connection to a cluster."""

    def __init__(self, address: EtcdAddress) -> None:
        """Prepare the channels; the first call connects. Needs a running event loop.

        Raises:
            EtcdError: when a file that the address names cannot be read.
        """
        if address.exposes_password:
            log.warning(
                "unencrypted",
                why="the password for etcd can be read by anyone on the network",
                hint="add ca=FILE to the address of etcd: docs/coordinators.md",
            )
        self.address = address
        self.endpoints = Endpoints(address)
        self._token: str | None = None
        self._cluster: int | None = None

    async def close(self) -> None:
        """Close the channels; calls under way end."""
        await self.endpoints.close()

    async def get(self, key: bytes, *, limit_s: float = CALL_LIMIT_S) -> KeyValue | None:
        """Return a key as it is now, or None.

        Raises:
            EtcdError: when it cannot be read.
        """
        ranged = await self.range(key, limit_s=limit_s)
        return ranged.found[0] if ranged.found else None

    async def range(
        self,
        key: bytes,
        end: bytes = b"",
        *,
        revision: int = 0,
        limit: int = 0,
        keys_only: bool = False,
        limit_s: float = CALL_LIMIT_S,
        attempt_s: float | None = None,
    ) -> Ranged:
        """Return the keys from `key` up to `end`; most of the members have confirmed the answer.

        Args:
            key: the first one.
            end: the first one that is not wanted; empty: only `key`.
            revision: of the store; 0: the newest one.
            limit: number of keys; 0: all.
            keys_only: leaves the values out.
            limit_s: for all attempts, in seconds.
            attempt_s: for each attempt; None: as for every call.

        Raises:
            EtcdError: when they cannot be read.
        """
        request = to_range(Get(key, end), revision=revision, limit=limit, keys_only=keys_only)

        async def read(endpoint: Endpoint, timeout_s: float) -> Any:
            return await endpoint.keys.Range(request, timeout=timeout_s, metadata=self.metadata())

        return from_range(await self.attempt(read, limit_s, attempt_s))

    async def transact(
        self,
        conditions: Sequence[Condition],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        limit_s: float = CALL_LIMIT_S,
    ) -> Outcome:
        """Do `then` if all conditions hold, else `otherwise`; all at once.

        Args:
            conditions: must fail once `then` has been done, because an attempt may come twice.
            then: operations, at most 128.
            otherwise: operations, at most 128.
            limit_s: for all attempts, in seconds.

        Raises:
            EtcdTimedOut: when no answer came; `then` may be done, now or later.
            EtcdError: when etcd has refused it. An attempt before may have been carried out.
        """
        request = to_transaction(conditions, then, otherwise)

        async def commit(endpoint: Endpoint, timeout_s: float) -> Any:
            return await endpoint.keys.Txn(request, timeout=timeout_s, metadata=self.metadata())

        return from_transaction(await self.attempt(commit, limit_s))

    async def grant(self, ttl_s: int, *, limit_s: float = CALL_LIMIT_S) -> Granted:
        """Begin a lease; etcd may make it longer than `ttl_s`.

        Raises:
            EtcdError: when none was granted. A lost answer leaves one that ends by itself.
        """

        async def begin(endpoint: Endpoint, timeout_s: float) -> Any:
            # A new id each time: one whose answer was lost may have lived for a while already.
            request = rpc.LeaseGrantRequest(TTL=ttl_s, ID=random.randrange(1, LEASE_IDS))
            return await endpoint.leases.LeaseGrant(
                request, timeout=timeout_s, metadata=self.metadata()
            )

        answer = await self.attempt(begin, limit_s)
        return Granted(answer.ID, answer.TTL, answer.header.raft_term)

    async def keep_alive(
        self, lease: int, *, limit_s: float = CALL_LIMIT_S, attempt_s: float | None = None
    ) -> Granted:
        """Renew a lease; `ttl_s` is 0 when it has ended.

        Raises:
            EtcdError: when no member has confirmed it.
        """

        async def renew(endpoint: Endpoint, timeout_s: float) -> Any:
            async with asyncio.timeout(timeout_s):
                call = endpoint.leases.LeaseKeepAlive(
                    iter([rpc.LeaseKeepAliveRequest(ID=lease)]),
                    timeout=timeout_s,
                    metadata=(*self.metadata(), ("hasleader", "true")),
                )
                async for answer in call:
                    call.cancel()
                    return answer
            raise EtcdTimedOut("etcd ended the renewal of a lease without an answer")

        answer = await self.attempt(renew, limit_s, attempt_s)
        return Granted(answer.ID, answer.TTL, answer.header.raft_term)

    async def revoke(self, lease: int, *, limit_s: float = CALL_LIMIT_S) -> None:
        """End a lease, and the keys that it holds.

        Raises:
            EtcdLeaseGone: when it has ended before.
            EtcdError: when that cannot be confirmed.
        """

        async def end(endpoint: Endpoint, timeout_s: float) -> Any:
            return await endpoint.leases.LeaseRevoke(
                rpc.LeaseRevokeRequest(ID=lease), timeout=timeout_s, metadata=self.metadata()
            )

        await self.attempt(end, limit_s)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what every call brings: the token of the user, if there is one."""
        return () if self._token is None else (("token", self._token),)

    def check_cluster(self, answer: Any, endpoint: Endpoint) -> None:
        """Note the cluster that has answered.

        Raises:
            EtcdOtherCluster: when it is another one than before.
        """
        cluster = answer.header.cluster_id
        if self._cluster is None:
            self._cluster = cluster
        elif cluster != self._cluster:
            raise EtcdOtherCluster(
                f"etcd at {endpoint.name} belongs to another cluster: correct the endpoints"
            )

    async def attempt(
        self, attempt: Attempt[Any], limit_s: float, attempt_s: float | None = None
    ) -> Any:
        """Make attempts, each at the next endpoint, until one is answered or the time is over.

        Args:
            attempt: the call, for an endpoint and a limit in seconds.
            limit_s: for all attempts.
            attempt_s: for each attempt; None: ATTEMPT_LIMIT_S, and more when all have failed.

        Raises:
            EtcdError: the refusal, or the error of the last attempt.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + limit_s
        has_renewed = False
        attempts = 0
        while True:
            endpoint = self.endpoints.current
            rounds = min(attempts // len(self.endpoints), 8)
            longest_s = attempt_s or ATTEMPT_LIMIT_S * 2**rounds
            try:
                timeout_s = min(longest_s, max(0.01, ends_s - loop.time()))
                await self._authenticate(endpoint, timeout_s)
                answer = await _translated(attempt, endpoint, timeout_s)
                self.check_cluster(answer, endpoint)
            except EtcdTokenExpired as error:
                if has_renewed or self.address.user is None:
                    raise EtcdRefusedUser(str(error)) from error
                self._token, has_renewed = None, True
                continue
            except EtcdError as error:
                if not error.is_repeated:
                    raise
                attempts += 1
                self.endpoints.leave(endpoint)
                pause_s = PAUSE_S * random.uniform(0.5, 1.5)
                if loop.time() + pause_s >= ends_s:
                    raise
                await asyncio.sleep(pause_s)
                continue
            return answer

    async def _authenticate(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Get a token, if there is a user without one."""
        if self.address.user is None or self._token is not None:
            return
        assert self.address.password_file is not None  # parse_address sees to that
        password = read_file(self.address.password_file).decode("utf-8", "replace").rstrip("\n")
        request = rpc.AuthenticateRequest(name=self.address.user, password=password)

        async def ask(endpoint: Endpoint, timeout_s: float) -> Any:
            return await endpoint.users.Authenticate(request, timeout=timeout_s)

        answer = await _translated(ask, endpoint, timeout_s)
        self._token = answer.token


async def _translated(attempt: Attempt[Any], endpoint: Endpoint, timeout_s: float) -> Any:
    """Make one attempt; what gRPC raises becomes one of our errors."""
    try:
        return await attempt(endpoint, timeout_s)
    except grpc.aio.AioRpcError as error:
        raise to_error(error.code(), error.details() or "", endpoint.name) from error
    except TimeoutError as error:
        raise to_error(grpc.StatusCode.DEADLINE_EXCEEDED, "", endpoint.name) from error
