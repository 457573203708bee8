"""What a client has learned about the coordinator: its epoch, and the latest change of each job.

A further attempt says what was known before the first. A coordinator that has started again
meanwhile, without its memory, can then refuse to count it twice.
"""

from __future__ import annotations

import threading

from rallypoint.v1 import key_value_service_pb2 as keys_pb2


class Known:
    """What one client knows. Threads may share it."""

    def __init__(self, epoch: int) -> None:
        """Begin with the epoch of the coordinator that started the worker; 0: none is known."""
        self._epoch = epoch
        self._headers: dict[str, keys_pb2.KeyValueHeader] = {}
        self._lock = threading.Lock()

    @property
    def epoch(self) -> int:
        """The highest epoch so far."""
        return self._epoch

    def header(self, job_id: str) -> keys_pb2.KeyValueHeader:
        """Return the latest header of a job; without one, the epoch and revision 0."""
        with self._lock:
            found = self._headers.get(job_id)
            return keys_pb2.KeyValueHeader(epoch=self._epoch) if found is None else found

    def learn_epoch(self, epoch: int) -> None:
        """Note the epoch of an answer."""
        with self._lock:
            self._epoch = max(self._epoch, epoch)

    def learn_header(self, job_id: str, header: keys_pb2.KeyValueHeader) -> None:
        """Note the header of an answer."""
        self.learn_epoch(header.epoch)
        with self._lock:
            found = self._headers.get(job_id)
            if found is None or _place(header) > _place(found):
                self._headers[job_id] = header


def _place(header: keys_pb2.KeyValueHeader) -> tuple[int, int]:
    return header.epoch, header.revision
