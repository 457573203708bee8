"""Small values that the workers of a job share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rallypoint.client.values import Scope

if TYPE_CHECKING:
    from rallypoint.client.sync_lists import Watch
    from rallypoint.v1.key_value_service_pb2 import KeyEvent, KeyValueHeader


class KeyValues:
    """The keys of this worker's round, or with Scope.RUN of its run.

    Every method raises a `RallypointError` when it fails.
    """

    def get(self, key: str, *, wait_s: float = 0.0, scope: Scope = Scope.ROUND) -> bytes | None:
        """Return the value of a key; None: it does not exist.

        Args:
            key: which one.
            wait_s: how long to wait for it; 0: do not wait.
            scope: what it belongs to.

        Raises:
            KeysMissing: when it does not exist after the wait.
        """
        from rallypoint.worker.session import current

        session = current()
        answer = session.client.get_keys(session.job_id, [key], wait_s=wait_s, scope=scope)
        return answer.kvs[0].value if answer.kvs else None

    def put(self, key: str, value: bytes, *, scope: Scope = Scope.ROUND) -> int:
        """Set a key; return the revision of the change."""
        from rallypoint.worker.session import current

        session = current()
        return session.client.put_key(session.job_id, key, value, scope=scope).revision

    def add(self, key: str, amount: int = 1, *, scope: Scope = Scope.ROUND) -> int:
        """Add to the number that a key holds, 0 if it does not exist; return the sum."""
        from rallypoint.worker.session import current

        session = current()
        return session.client.add_to_key(session.job_id, key, amount, scope=scope).sum

    def compare_and_set(
        self, key: str, value: bytes, *, expected: bytes | None, scope: Scope = Scope.ROUND
    ) -> bool:
        """Set a key if its value is as expected; return whether it was.

        Args:
            key: which one.
            value: its new value.
            expected: its value now; None: it does not exist.
            scope: what it belongs to.
        """
        from rallypoint.v1.key_value_service_pb2 import KeyCondition
        from rallypoint.worker.session import current

        session = current()
        absent = KeyCondition(mod_revision=0)
        condition = absent if expected is None else KeyCondition(value=expected)
        answer = session.client.compare_and_set_key(
            session.job_id, key, value, expected=condition, scope=scope
        )
        return answer.was_changed

    def delete(self, key: str, *, scope: Scope = Scope.ROUND) -> bool:
        """Delete a key; return whether it existed."""
        from rallypoint.worker.session import current

        session = current()
        return session.client.delete_key(session.job_id, key, scope=scope).was_changed

    def watch(
        self,
        prefix: str = "",
        *,
        after: KeyValueHeader | None = None,
        scope: Scope = Scope.ROUND,
    ) -> Watch[KeyEvent]:
        """Return the changes of the keys with a prefix, as `Client.watch_keys` does."""
        from rallypoint.worker.session import current

        session = current()
        return session.client.watch_keys(session.job_id, prefix, after=after, scope=scope)

    def list(self, prefix: str = "", *, scope: Scope = Scope.ROUND) -> Iterator[tuple[str, bytes]]:
        """Yield the keys with a prefix and their values, by the bytes of the keys."""
        from rallypoint.worker.session import current

        session = current()
        for kv in session.client.list_keys(session.job_id, prefix, scope=scope):
            yield kv.key, kv.value
