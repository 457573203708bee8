"""Calls about all jobs: one part for each shard, answered here or by its owner.

A part that fails ends the whole call with its status: an answer never leaves a shard out without
saying so.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from rallypoint.server.access.marks import forwarded, original_peer
from rallypoint.server.access.usage.callers import StandIn
from rallypoint.server.contract.calls import CallRefused, Context, require
from rallypoint.server.contract.errors import no_owner_status, to_status
from rallypoint.server.contract.routes import Route
from rallypoint.server.fleet.directory import Directory, Local, LocalShard
from rallypoint.server.fleet.forwarding import Forwarder
from rallypoint.server.shell.coordinator import CoordinatorEnded
from rallypoint.wire.limits import NUMBER_MAX

Take = Callable[[int, Any], Awaitable[None]]
"""Takes an answer of a shard; for one answer at a time."""


class ShardCalls:
    """Makes the parts of calls."""

    def __init__(self, directory: Directory, local: Local, forwarder: Forwarder) -> None:
        """Ask shards of this process directly, and the owners of the others."""
        self._directory = directory
        self._local = local
        self._forwarder = forwarder

    @property
    def count(self) -> int:
        """Return the number of shards."""
        return self._directory.shard_count

    async def ask(self, route: Route, shard: int, request: Message, context: Context) -> Any:
        """Return the answer of one shard.

        Raises:
            Exception: that says why there is none, as `to_status` knows it; or a bug.
        """
        local = self._local.find(shard)
        if local is None:
            address = self._address(shard)
            encoded = request.SerializeToString()
            answer = await self._forwarder.call(route, shard, address, encoded, context)
            return route.response.FromString(answer)
        answer = await _serve(local, route, request, _part(context, shard))
        self._check(shard, local)
        return _decoded(route, answer)

    async def ask_all(
        self, route: Route, requests: Sequence[Message], context: Context
    ) -> list[Any]:
        """Return the answers of all shards, in their order; `requests` has one for each.

        Raises:
            Exception: as `ask`, of the first shard that gives none.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                asked = [
                    tasks.create_task(self.ask(route, shard, request, context))
                    for shard, request in enumerate(requests)
                ]
        except ExceptionGroup as group:
            raise _first_failure(group) from None
        return [task.result() for task in asked]

    async def watch_all(
        self, route: Route, requests: Sequence[Message], context: Context, take: Take
    ) -> None:
        """Give all answers of all shards to `take`, until one of them ends.

        Raises:
            Exception: as `ask`, of the first shard that answers no more.
        """
        lock = asyncio.Lock()

        async def follow(shard: int, request: Message) -> None:
            async def write(answer: Any) -> None:
                async with lock:
                    await take(shard, _decoded(route, answer))

            await self._watch(route, shard, request, context, write)
            raise CallRefused(no_owner_status(shard))  # such a watch ends only with its shard

        try:
            async with asyncio.TaskGroup() as tasks:
                for shard, request in enumerate(requests):
                    tasks.create_task(follow(shard, request))
        except ExceptionGroup as group:
            raise _first_failure(group) from None

    async def _watch(
        self,
        route: Route,
        shard: int,
        request: Message,
        context: Context,
        write: Callable[[Any], Awaitable[None]],
    ) -> None:
        local = self._local.find(shard)
        if local is None:
            address, encoded = self._address(shard), request.SerializeToString()
            async for answer in self._forwarder.stream(route, shard, address, encoded, context):
                await write(answer)
            return

        async def write_owned(answer: Any) -> None:
            self._check(shard, local)
            await write(answer)

        await _serve(local, route, request, _part(context, shard, write_owned))

    def _check(self, shard: int, local: LocalShard) -> None:
        """Let nothing out of a shard that another coordinator may own.

        Raises:
            CoordinatorEnded: when that may be.
        """
        if self._local.find(shard) is not local:
            raise CoordinatorEnded

    def _address(self, shard: int) -> str:
        address = self._directory.owner_of(shard)
        if address is None:
            raise CallRefused(no_owner_status(shard, self._directory.trouble(shard)))
        return address


def _part(
    context: Context, shard: int, write: Callable[[Any], Awaitable[None]] | None = None
) -> StandIn:
    """Return the context of a part of a call: as forwarded to a shard of this process."""
    return StandIn(context, original_peer(context), write, forwarded(context, shard))


async def _serve(local: LocalShard, route: Route, request: Message, context: StandIn) -> Any:
    return await getattr(local.services[route.service], route.name)(request, context)


def _decoded(route: Route, answer: Any) -> Any:
    return route.response.FromString(answer) if isinstance(answer, bytes) else answer


def _first_failure(group: ExceptionGroup[Any]) -> Exception:
    """Return how a call ends some of whose parts have failed: as the first of them, bugs first."""
    leaves = list(_leaves(group))
    bugs = (leaf for leaf in leaves if to_status(leaf) is None)
    refusals = (leaf for leaf in leaves if not is_unavailable(leaf))
    return next(bugs, None) or next(refusals, None) or leaves[0]


def is_unavailable(error: Exception) -> bool:
    """Return whether an exception only says that a shard does not answer now."""
    status = to_status(error)
    return status is not None and status.code == grpc.StatusCode.UNAVAILABLE.value[0]


def _leaves(group: ExceptionGroup[Any]) -> Iterator[Exception]:
    for one in group.exceptions:
        if isinstance(one, ExceptionGroup):
            yield from _leaves(one)
        else:
            yield one


def write_position(numbers: Sequence[int]) -> str:
    """Return a place in all shards, as clients get it; `numbers` has one for each of them."""
    return ".".join(f"{number:x}" for number in numbers)


def read_position(text: str, count: int, path: str) -> list[int]:
    """Return the number for each shard; zeros for an empty text.

    Args:
        text: what a client has sent.
        count: number of shards.
        path: of the field.

    Raises:
        InvalidMessage: when it is no position of this store.
    """
    if not text:
        return [0] * count
    parts = text.split(".")
    is_one = all(re.fullmatch("[0-9a-f]{1,14}", part) for part in parts)
    require(is_one and len(parts) == count, path, f"is not a position in {count} shards")
    numbers = [int(part, 16) for part in parts]
    require(max(numbers) <= NUMBER_MAX, path, f"is not a position in {count} shards")
    return numbers
