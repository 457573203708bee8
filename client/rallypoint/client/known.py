"""What a client has learned about the coordinator: its epoch, and the latest change of each job.

A further attempt says what was known before the first. A coordinator that has started again
meanwhile, without its memory, can then refuse to count it twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rallypoint.v1 import key_value_service_pb2 as keys_pb2

RECENT_S = 5.0
"""A coordinator remembers 4 MiB of requests: hardly ever less than those of so many seconds."""


class Known:
    """What one client knows. Threads may share it."""

    def __init__(self, epoch: int, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begin with the epoch of the coordinator that started the worker; 0: none is known."""
        self._epoch = epoch
        self._now_s = now_s
        self._is_durable = False
        self._headers: dict[str, keys_pb2.KeyValueHeader] = {}
        self._learned_s: dict[str, float] = {}
        """When the latest header of each job came."""
        self._lock = threading.Lock()

    @property
    def epoch(self) -> int:
        """The highest epoch so far."""
        return self._epoch

    @property
    def is_durable(self) -> bool:
        """Whether the coordinator knows after a restart, too, which attempts have counted."""
        return self._is_durable

    def is_recent(self, job_id: str) -> bool:
        """Return whether the coordinator remembers all requests since the last header of a job."""
        return self._now_s() - self._learned_s.get(job_id, -RECENT_S) < RECENT_S

    def header(self, job_id: str) -> keys_pb2.KeyValueHeader:
        """Return the latest header of a job; without one, the epoch and revision 0."""
        with self._lock:
            found = self._headers.get(job_id)
            return keys_pb2.KeyValueHeader(epoch=self._epoch) if found is None else found

    def learn_epoch(self, epoch: int, *, durable: bool) -> None:
        """Note what an answer says of the coordinator; an older answer says nothing."""
        with self._lock:
            if epoch >= self._epoch:
                self._epoch, self._is_durable = epoch, durable

    def learn_header(self, job_id: str, header: keys_pb2.KeyValueHeader) -> None:
        """Note the header of an answer."""
        self.learn_epoch(header.epoch, durable=header.durable)
        with self._lock:
            found = self._headers.get(job_id)
            if found is None or _place(header) > _place(found):
                self._headers[job_id] = header
            if found is None or _place(header) >= _place(found):
                self._learned_s[job_id] = self._now_s()


def _place(header: keys_pb2.KeyValueHeader) -> tuple[int, int]:
    return header.epoch, header.revision
