"""The helper's end of its forkservers: children that have imported what workers need.

A forkserver forks twice, and waits for the process in between. So the kernel hands the worker to
the helper, its nearest subreaper, and what the helper promises of its children holds for it. The
worker begins only when the helper knows it: it waits for a byte of its gate, and ends without one.
Once it has begun, it waits for the end of its gate: signals that have waited are sent first.

A forkserver is asked for one worker at a time, in one message of a SOCK_SEQPACKET socket: JSON of
{argv, env, cpus, helper}, where helper is the pid of its parent, and the descriptors of stdin,
stdout and stderr, of the pipe for a failure, and of the gate. The answer is the worker's pid, or
minus an errno.

Imported by the helper: standard library only, and no module that costs memory.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
from collections import deque

from rallypoint.agent.helper.descendants import list_descendants, read_stat
from rallypoint.agent.helper.worker import Worker

TYPE_CHECKING = False  # mypy knows the name; importing typing would cost 1 MB
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Fds = tuple[int, ...]
    Settle = Callable[[Worker, int | OSError], None]


class Forkserver:
    """One forkserver.

    Attributes:
        pid: the child.
        socket: the helper's end.
        forks: workers that it has not forked yet, each with its message and descriptors; it was
            asked for the first one.
        has_served: it was asked for one.
    """

    __slots__ = ("forks", "has_served", "pid", "socket")

    def __init__(self, pid: int, ours: socket.socket) -> None:
        """Take the child, and the helper's end of its socket."""
        ours.setblocking(False)
        self.pid = pid
        self.socket = ours
        self.forks: deque[tuple[Worker, bytes, Fds]] = deque()
        self.has_served = False

    def ask(self) -> None:
        """Ask for the first worker.

        Raises:
            OSError: it has ended, or the message is too long.
        """
        _, message, fds = self.forks[0]
        socket.send_fds(self.socket, [message], fds, socket.MSG_NOSIGNAL)

    def receive(self) -> int | None:
        """Return its answer; None: it has ended, or a program that it has imported writes there."""
        try:
            return int(self.socket.recv(64)) if self.forks else None
        except (OSError, ValueError):
            return None

    def pop(self) -> Worker:
        """Forget the first worker."""
        worker, _, fds = self.forks.popleft()
        _close_all(fds)
        return worker


class Forkservers:
    """All forkservers of a helper, by the worker id with which the agent has started them."""

    def __init__(self, poll: select.poll, settle: Settle) -> None:
        """Begin without any.

        Args:
            poll: of the helper; it waits for their sockets, too.
            settle: learns of each worker that was asked for its pid, or why it was not forked.
        """
        self._poll = poll
        self._settle = settle
        self._by_id: dict[int, Forkserver] = {}

    def __contains__(self, worker_id: int) -> bool:
        """Return whether a child of the helper is a forkserver."""
        return worker_id in self._by_id

    def add(self, worker_id: int, pid: int, ours: socket.socket) -> None:
        """Take a child that was just started, and our end of its socket."""
        self._by_id[worker_id] = Forkserver(pid, ours)
        self._poll.register(ours, select.POLLIN)

    def ask(self, message: dict[str, Any], fds: Fds, helper_pid: int) -> Worker:
        """Ask for the worker of a spawn, once those before it are forked; return it.

        Args:
            message: the spawn frame.
            fds: its descriptors, borrowed.
            helper_pid: who the worker's parent has to be.

        Raises:
            OSError: the forkserver is gone, or no descriptor is left.
        """
        server = self._by_id.get(message["via"])
        if server is None:
            raise OSError(errno.ESRCH, "the forkserver has ended")
        wanted = {key: message[key] for key in ("argv", "env", "cpus")}
        text = json.dumps({**wanted, "helper": helper_pid}).encode("ascii")
        opened: list[int] = []
        try:
            for _ in range(2):
                opened += os.pipe()
            for fd in fds:
                opened.append(os.dup(fd))
        except OSError:
            _close_all(opened)
            raise
        exec_fd, report_fd, gate_read_fd, gate_fd, *streams = opened
        worker = Worker(message["id"], 0, exec_fd, gate_fd)
        server.forks.append((worker, text, (*streams, report_fd, gate_read_fd)))
        server.has_served = True
        if len(server.forks) == 1:
            try:
                server.ask()
            except OSError:
                server.pop().give_up()
                raise
        return worker

    def read(self, ready: list[int], helper_pid: int) -> None:
        """Settle the workers that were forked, and those that were not.

        Args:
            ready: descriptors that can be read.
            helper_pid: who their parent has to be.
        """
        for worker_id, server in list(self._by_id.items()):
            if server.socket.fileno() not in ready:
                continue
            answer = server.receive()
            if answer is None:
                self.remove(worker_id)
                continue
            self._settle(server.pop(), _check(answer, helper_pid))
            while server.forks:
                try:
                    server.ask()
                    break
                except OSError as error:
                    self._settle(server.pop(), error)

    def remove(self, worker_id: int) -> None:
        """Forget a forkserver that has ended, and settle the workers that it has not forked."""
        server = self._by_id.pop(worker_id, None)
        if server is None:
            return
        self._poll.unregister(server.socket)
        server.socket.close()
        while server.forks:
            self._settle(server.pop(), OSError(errno.EPIPE, "the forkserver has ended"))

    def find_spared(self, *, with_forks: bool) -> set[int]:
        """Return the pids that a sweep spares.

        Args:
            with_forks: also forkservers that are asked for a worker.
        """
        servers = [one for one in self._by_id.values() if with_forks or not one.forks]
        spared = {server.pid for server in servers}
        for server in servers:
            if not server.has_served:  # an import may run other programs
                spared.update(list_descendants(server.pid))
        return spared

    def are_alone(self, helper_pid: int) -> bool:
        """Return whether nothing is left of the workers: only forkservers that fork none now.

        The list is complete. Only the helper takes a dead child off the list of its children, and
        it does not while it reads. A forkserver has no children but those of its imports and forks.
        """
        if not self._by_id or any(server.forks for server in self._by_id.values()):
            return False
        left = set(list_descendants(helper_pid))
        return left <= self.find_spared(with_forks=False)


def _check(answer: int, helper_pid: int) -> int | OSError:
    """Return the worker's pid, or why there is none."""
    if answer <= 0:
        return OSError(-answer, os.strerror(-answer))
    stat = read_stat(answer)
    if stat is not None and stat.parent == helper_pid:
        return answer
    return OSError(errno.ESRCH, "it has ended before it began")


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
