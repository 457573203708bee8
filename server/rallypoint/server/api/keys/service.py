"""KeyValueService: a change is answered when it is in the journal, a read shows only what is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

from rallypoint.server.access.tokens import WorkerTokens, require_worker
from rallypoint.server.access.usage.allowances import JobBytes
from rallypoint.server.access.usage.peers import host_of
from rallypoint.server.access.usage.stalls import Stalls
from rallypoint.server.api.keys import messages
from rallypoint.server.api.keys.messages import Get, to_get, to_page, to_watch, to_writes
from rallypoint.server.api.keys.reading import Cursor, Found, get_keys, list_keys
from rallypoint.server.api.keys.waits import KeyWait, KeyWaits
from rallypoint.server.contract.calls import CallRefused, Context, is_set_within
from rallypoint.server.core.keys import count_bytes
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc

PROGRESS_S = 5.0
"""How often a watch without changes learns the latest revision. After an interruption it need not
begin at one that is forgotten."""
SMALL_BYTES = 4_096
"""Of the keys and values that a request changes. So few take no longer than the rest of a call, and
never wait."""
BYTES_PER_S_MAX = 2 * 1_048_576
"""Of larger changes of a job. While they are written, all other jobs wait: so many take a fifth of
the time of a slow disk."""
BURST_S = 4.0
"""A job that has made none for so long may make as many at once as in that time."""
PATIENCE_S = 4.0
"""Longest wait of a change for those before it. So at most 8 MiB of changes of a job wait."""


class KeyValueService(keys_grpc.KeyValueServiceServicer):
    """Serves workers."""

    def __init__(
        self, coordinator: Coordinator, waits: KeyWaits, state: State, tokens: WorkerTokens
    ) -> None:
        """Serve the keys of `coordinator`.

        Args:
            coordinator: decides.
            waits: learns every change.
            state: the live state.
            tokens: prove that a caller is a worker of a round.
        """
        self._state = state
        self._large = JobBytes(Limit.KEY_RATE, BYTES_PER_S_MAX, BURST_S * BYTES_PER_S_MAX)
        self._coordinator = coordinator
        self._waits = waits
        self._tokens = tokens
        self._stalls = Stalls()

    async def WriteKeys(
        self, request: keys_pb2.WriteKeysRequest, context: Context
    ) -> keys_pb2.WriteKeysResponse:
        """Make changes in one step."""
        writes = to_writes(request, self._claim(request.job_id, context), _clock_ms())
        await self._pay(writes, context.time_remaining())
        answer = await self._coordinator.ask(
            writes, lambda state, now_ms: self._waits.take_answer(writes.answer_id)
        )
        names = [one.key for one in request.writes]
        return messages.written_message(answer, self._waits, names)

    async def GetKeys(
        self, request: keys_pb2.GetKeysRequest, context: Context
    ) -> keys_pb2.GetKeysResponse:
        """Return the values of keys; wait for them if the caller does."""
        claim = self._claim(request.job_id, context)
        get = to_get(request, claim, context.time_remaining())
        if not get.timeout_ms:
            return (await self._coordinator.read(partial(get_keys, get))).answer
        wait = KeyWait(claim.job_id, [])
        begin = partial(self._look, get, wait)
        try:
            async with asyncio.timeout(get.timeout_ms / 1000):
                found = await self._coordinator.read(begin)
                while found.missing:
                    await wait.changed.wait()
                    found = await self._coordinator.read(begin)
        except TimeoutError:
            found = await self._coordinator.read(partial(get_keys, get))
        finally:
            self._waits.remove(wait)
        if found.missing:
            missing = [place.key for place in found.missing]
            raise CallRefused(messages.missing_status(missing, get.timeout_ms / 1000))
        return found.answer

    async def ListKeys(
        self, request: keys_pb2.ListKeysRequest, context: Context
    ) -> keys_pb2.ListKeysResponse:
        """Return a page of keys."""
        page = to_page(request, self._claim(request.job_id, context))
        return await self._coordinator.read(partial(list_keys, page))

    async def WatchKeys(  # type: ignore[override]  # a handler may write instead of yield
        self, request: keys_pb2.WatchKeysRequest, context: Context
    ) -> None:
        """Send every change of keys."""
        watch = to_watch(request, self._claim(request.job_id, context), _clock_ms())
        cursor = Cursor(watch, host_of(context.peer()), self._waits)
        try:
            answer = await self._coordinator.read(cursor.begin)
            async with self._stalls.writing(context) as write:
                await self._send_changes(cursor, answer, write)
        finally:
            cursor.end()

    def _claim(self, job_id: str, context: Context) -> inputs.Claim:
        return self._tokens.claim(job_id, context.invocation_metadata())

    async def _pay(self, writes: inputs.WriteKeys, left_s: float | None) -> None:
        """Let the allowance of a job pay for large changes; wait if it is used up.

        Args:
            writes: the changes.
            left_s: until the deadline of the call; None: it has none.
        """
        size = count_bytes(self._state.keys.get(writes.job_id), writes)
        if size <= SMALL_BYTES:
            return
        await require_worker(self._coordinator, self._state, writes.claim)
        patience_s = PATIENCE_S if left_s is None else min(PATIENCE_S, left_s / 2)
        now_s = asyncio.get_running_loop().time()
        await asyncio.sleep(self._large.use(writes.job_id, size, now_s, patience_s))

    def _look(self, get: Get, wait: KeyWait, state: State, now_ms: int) -> Found:
        """Read the keys in a turn; wait for those that do not exist."""
        self._waits.remove(wait)
        wait.changed.clear()
        found = get_keys(get, state, now_ms)
        wait.missing = list(found.missing)
        if wait.missing:
            self._waits.wait(wait, state)
        return found

    async def _send_changes(
        self,
        cursor: Cursor,
        answer: keys_pb2.WatchKeysResponse,
        write: Callable[[Any], Awaitable[None]],
    ) -> NoReturn:
        """Send a watch its first answer, and then what its cursor finds, until the call ends."""
        while True:
            await write(answer)
            answer = await self._next_answer(cursor, answer.header.revision)

    async def _next_answer(self, cursor: Cursor, sent: int) -> keys_pb2.WatchKeysResponse:
        """Return the next changes of a watch; after a while without any, how far it has come."""
        loop, wait = asyncio.get_running_loop(), cursor.wait
        pause_s = PROGRESS_S * random.uniform(0.5, 1)  # so that not all watches look at once
        due_s = loop.time() + pause_s
        while True:
            is_woken = await is_set_within(wait.changed, due_s - loop.time())
            if is_woken or self._waits.latest(wait.job_id) > sent:
                answer = await self._coordinator.read(cursor.take)
                if answer.events or (not is_woken and answer.header.revision > sent):
                    return answer
            if not is_woken:
                due_s = loop.time() + pause_s


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
