"""Why shards are not served, as far as this process knows: for calls, agents and the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rallypoint.base.log import get_logger
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdError
from rallypoint.server.etcd.survey import explain, find_alarm

log = get_logger()

REMIND_S = 30.0
"""How often the log repeats a trouble that lasts."""
FRESH_S = 15.0
"""How long the reason of a shard holds: it is tried again every few seconds, here or elsewhere."""
LOOK_S = 1.0
"""Pause between two looks at the alarms of etcd; a member knows them without the others."""


class ShardRefused(Exception):
    """A shard cannot be served; the text says why, in one line."""


class Standing:
    """What keeps this process from serving shards."""

    def __init__(self, client: EtcdClient, woken: Callable[[], None]) -> None:
        """Begin without trouble.

        Args:
            client: of the cluster.
            woken: is called after every change.
        """
        self._client = client
        self._woken = woken
        self.trouble = ""
        """Why nothing can be decided, in one line; empty while that is possible."""
        self._refused: dict[int, tuple[str, float]] = {}
        """Why shards could not be served, and until when that is worth telling."""
        self._remind_s = 0.0
        self._guess = ""
        """Why etcd may be out of reach, while a renewal of the lease is late."""

    def why(self, shard: int) -> str:
        """Return why a shard is not served; empty: no reason is known."""
        why, until_s = self._refused.get(shard, ("", 0.0))
        is_fresh = asyncio.get_running_loop().time() < until_s
        return self.trouble or (why if is_fresh else "")

    def refuse(self, shard: int, why: str) -> None:
        """Note that a shard cannot be served, and why."""
        self._refused[shard] = why, asyncio.get_running_loop().time() + FRESH_S
        self._woken()

    def accept(self, shard: int) -> None:
        """Note that this process serves a shard."""
        self._refused.pop(shard, None)

    def note(self, trouble: str) -> None:
        """Note why nothing can be decided; empty: it can be again."""
        now_s = asyncio.get_running_loop().time()
        if trouble and (trouble != self.trouble or now_s >= self._remind_s):
            log.warning("decisions_stopped", why=trouble)
            self._remind_s = now_s + REMIND_S
        elif not trouble and self.trouble:
            log.info("decisions_resumed")
        if trouble != self.trouble:
            self.trouble = trouble
            self._woken()

    def lose(self, why: str) -> None:
        """Note that the lease is lost."""
        self.note(self._guess or why)

    async def explain(self, why: str) -> None:
        """Note that etcd cannot be reached; find out which of its members do not answer.

        Args:
            why: what a call has failed with.
        """
        self.note(await explain(self._client, why))

    async def watch(self, is_late: Callable[[], bool]) -> None:
        """Follow the alarms of etcd until cancelled.

        Args:
            is_late: whether a renewal of the lease is late: then, find out why.
        """
        while True:
            self._guess = await explain(self._client, "") if is_late() else ""
            try:
                self.note(await find_alarm(self._client))
            except EtcdError as error:
                log.debug("alarms_not_fetched", why=str(error))  # the lease shows it, too
            await asyncio.sleep(LOOK_S)
