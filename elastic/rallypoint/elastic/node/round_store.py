"""Keys and values that the agents of a round share, with the methods of torch's Store.

The round fences them: after its end every call fails. Keys of the workers' own stores are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from rallypoint.agent.core.desired import RunOrder

if TYPE_CHECKING:
    from rallypoint.client import Client
    from rallypoint.wire.access import Access

TIMEOUT = timedelta(seconds=300)
"""torch's default."""
_PREFIX = "elastic/"


class RoundStore:
    """The keys of one round. It connects at the first call; threads may share it."""

    timeout = TIMEOUT
    """How long `get` and `wait` wait for a key."""

    def __init__(
        self, coordinator: str, job_id: str, order: RunOrder, access: Access | None = None
    ) -> None:
        """Name the round.

        Args:
            coordinator: host:port, or those of several with commas in between.
            job_id: the job.
            order: proof that this node belongs to the round.
            access: how to verify the coordinator; None: as the environment says.
        """
        self._coordinator = coordinator
        self._job_id = job_id
        self._order = order
        self._access = access

    @cached_property
    def _client(self) -> Client:
        from rallypoint.client import Client

        token, epoch = self._order.worker_token, self._order.header.epoch
        return Client(self._coordinator, token=token, epoch=epoch, access=self._access)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long `get` and `wait` wait for a key."""
        self.timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        data = value.encode() if isinstance(value, str) else value
        self._client.put_key(self._job_id, _PREFIX + key, data)

    def get(self, key: str) -> bytes:
        """Return the value of a key; wait until it exists.

        Raises:
            TimeoutError: it did not exist in time.
        """
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str], timeout: timedelta | None = None) -> list[bytes]:
        """Return the values of several keys; wait until all exist.

        Raises:
            TimeoutError: one did not exist in time.
        """
        from rallypoint.client.errors import KeysMissing

        names = [_PREFIX + key for key in keys]
        wait_s = max((timeout or self.timeout).total_seconds(), 0.001)
        try:
            answer = self._client.get_keys(self._job_id, names, wait_s=wait_s)
        except KeysMissing as error:
            raise TimeoutError(f"keys missing after {wait_s:g} s: {', '.join(keys)}") from error
        values = {kv.key: kv.value for kv in answer.kvs}
        return [values[name] for name in names]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several keys, one after the other."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to the number that a key holds, 0 if it does not exist; return the sum."""
        return self._client.add_to_key(self._job_id, _PREFIX + key, amount).sum

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        names = [_PREFIX + key for key in keys]
        return len(self._client.get_keys(self._job_id, names).kvs) == len(set(names))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist.

        Raises:
            TimeoutError: they did not exist in time.
        """
        self.multi_get(keys, timeout)

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it existed."""
        return self._client.delete_key(self._job_id, _PREFIX + key).was_changed
