"""The line between a test and its workers: unix datagrams, both ways.

A worker script (tests/e2e/workers) reports what happens to it and obeys the test. The kernel names
the sockets, so nothing is left on disk and no name is reused. Such names end at the border of a
network namespace; for workers beyond one they are paths.
"""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from support.processes.commands import kill
from support.processes.feed import LIMIT_S, Feed

MAILBOX_ENV = "E2E_MAILBOX"
_BYTES_MAX = 262_144


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that has reported its start."""

    pid: int
    parent: int
    """Its parent: the helper process of its agent."""
    argv: tuple[str, ...]
    env: dict[str, str]
    started_s: float
    """Monotonic time of its first report."""
    address: bytes | str
    _socket: socket.socket = field(repr=False)

    @property
    def round(self) -> int:
        return int(self.env["RALLYPOINT_ROUND"])

    @property
    def rank(self) -> int:
        return int(self.env["RANK"])

    @property
    def node(self) -> str:
        return self.env["RALLYPOINT_NODE"]

    @property
    def restart_count(self) -> int:
        return int(self.env["TORCHELASTIC_RESTART_COUNT"])

    def tell(self, *words: str) -> None:
        """Send it a command; see the worker script for the commands."""
        self._socket.sendto(json.dumps(words).encode(), self.address)

    def kill(self) -> None:
        """SIGKILL it, and wait until it is dead."""
        kill(self.pid)


@dataclass(frozen=True, slots=True)
class Said:
    """One report."""

    kind: str
    pid: int
    fields: dict[str, Any]
    address: bytes | str


class Mailbox:
    """All reports of one test's workers."""

    def __init__(self, path: str = "") -> None:
        """Start to listen; at a path, if workers are on separate hosts."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self.name: str = path or self._socket.getsockname()[1:].decode()
        """The value of E2E_MAILBOX for workers."""
        self._feed: Feed[Said] = Feed("reports of workers")
        self._thread = threading.Thread(target=self._read, name="mailbox")
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()

    def said(self, kind: str) -> list[Said]:
        """Return the reports so far of one kind."""
        return [said for said in self._feed.items() if said.kind == kind]

    def wait(
        self, kind: str, count: int = 1, *, pid: int | None = None, limit_s: float = LIMIT_S
    ) -> list[Said]:
        """Wait for reports of one kind, of one process or of any."""

        def is_wanted(said: Said) -> bool:
            return said.kind == kind and pid in (None, said.pid)

        return self._feed.wait(is_wanted, count, limit_s)

    def workers(self, count: int, *, round: int = 1, limit_s: float = LIMIT_S) -> list[Worker]:
        """Wait for the workers of a round; return them by rank."""

        def is_wanted(said: Said) -> bool:
            return said.kind == "started" and said.fields["env"]["RALLYPOINT_ROUND"] == str(round)

        return sorted(
            (self._worker(said) for said in self._feed.wait(is_wanted, count, limit_s)),
            key=lambda worker: worker.rank,
        )

    def answer(self, said: Said, *words: str) -> None:
        """Send a command to the process that sent this report."""
        self._socket.sendto(json.dumps(words).encode(), said.address)

    def started(self) -> list[Worker]:
        """Return every worker that has started, in order of its report."""
        return [self._worker(said) for said in self.said("started")]

    def _worker(self, said: Said) -> Worker:
        fields = said.fields
        return Worker(
            said.pid,
            fields["parent"],
            tuple(fields["argv"]),
            fields["env"],
            fields["at_s"],
            said.address,
            self._socket,
        )

    def _read(self) -> None:
        while True:
            data, address = self._socket.recvfrom(_BYTES_MAX)
            if not data:
                self._feed.end()
                return
            fields = json.loads(data)
            self._feed.put(Said(fields.pop("kind"), fields.pop("pid"), fields, address))
