"""The one client of a worker process, made at the first call. This module loads gRPC."""

from __future__ import annotations

import atexit
import os
import threading
import time

from rallypoint.client.errors import ClientClosed, Forgotten
from rallypoint.client.shared import borrow, give_back
from rallypoint.v1.barrier_service_pb2 import Participant
from rallypoint.worker.agreement import Agreement
from rallypoint.worker.environment import Environment, read_environment
from rallypoint.worker.notices import read_notices
from rallypoint.worker.reporting import ProgressReports

CHECKPOINT_BARRIER = "rallypoint.should_checkpoint"
"""Name of the barrier at which the ranks agree."""


class Session:
    """What this worker shares with the others of its round. Threads may use it together."""

    def __init__(self, environment: Environment) -> None:
        """Connect at the first call."""
        self.environment = environment
        self.job_id = environment.job_id
        self._borrowed = borrow(environment.coordinator, environment.token, environment.epoch)
        self.client = self._borrowed.client
        self.progress = ProgressReports(self.client, self.job_id)
        self._agreement = Agreement()
        self._agreeing = threading.Lock()

    def gather(self, name: str, payload: bytes, timeout_s: float) -> list[bytes]:
        """Wait for all ranks; return the payload of each, by rank."""
        mine = Participant(rank=self.environment.rank)
        answer = self.client.arrive(self.job_id, name, mine, payload=payload, timeout_s=timeout_s)
        # The coordinator sends no payloads if all are empty.
        return list(answer.payloads) or [b""] * answer.participant_count

    def should_checkpoint(self, timeout_s: float) -> bool:
        """Return the answer that all ranks get."""
        ends_s = time.monotonic() + timeout_s
        with self._agreeing:
            while True:
                proposal = self._agreement.propose(read_notices(self.environment.notice_file))
                left_s = max(0.0, ends_s - time.monotonic())
                try:
                    proposals = self.gather(CHECKPOINT_BARRIER, proposal, left_s)
                except Forgotten:
                    continue  # the coordinator has started again; `Agreement` allows for that
                answer = self._agreement.decide(proposals)
                if answer is not None:
                    return answer

    def close(self) -> None:
        """Send the last reports, and disconnect."""
        self.progress.flush()
        self.disconnect()

    def disconnect(self) -> None:
        """End all calls, unless a store of this process has the same connection."""
        give_back(self._borrowed)


_lock = threading.Lock()
_sessions: dict[int, Session] = {}
"""The session by the id of its process: at most this one's, or that of the process it was forked
from."""


def current() -> Session:
    """Return the session of this process.

    Raises:
        NotAWorker: when no agent has started it.
        ClientClosed: when it was forked from a process with a session.
    """
    pid = os.getpid()
    session = _sessions.get(pid)
    if session is not None:
        return session
    with _lock:
        if pid not in _sessions:
            if _sessions:
                raise ClientClosed("forked after the first call: spawn this process instead")
            session = _sessions[pid] = Session(read_environment())
            atexit.register(_end, pid, session)
        return _sessions[pid]


def _end(pid: int, session: Session) -> None:
    if pid == os.getpid():  # a child inherits the handlers of its parent
        session.close()
