"""The helper's end of its forkservers: children that have imported what workers need.

A forkserver forks twice, and waits for the process in between. So the kernel hands the worker to
the helper, its nearest subreaper, and what the helper promises of its children holds for it. The
worker begins only when the helper knows it: it waits for a byte of its gate, and ends without one.
Once it has begun, it waits for the end of its gate: signals that have waited are sent first.

Frames to a forkserver:
    fork    {id, argv, env, cpus,       and the descriptors of stdin, stdout and stderr, of the pipe
             helper}                    for a failure, and of the gate; helper: its parent's pid
and from it:
    forked {id, pid}     fork_failed {id, errno, message}

Imported by the helper: standard library only, and no module that costs memory.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque

from rallypoint.agent.helper.control import Control, ProtocolError
from rallypoint.agent.helper.descendants import list_descendants, read_stat
from rallypoint.agent.helper.frames import encode

TYPE_CHECKING = False  # mypy knows the name; importing typing would cost 1 MB
if TYPE_CHECKING:
    from typing import Any

_BEGIN = b"1"


class Fork:
    """A worker that a forkserver was asked for.

    Attributes:
        worker_id: the agent's number for it.
        exec_fd: read end of the pipe that it closes when it has begun.
        gate_fd: write end of its gate.
        waiting: signals that have arrived; see Worker.
    """

    __slots__ = ("exec_fd", "gate_fd", "waiting", "worker_id")

    def __init__(self, worker_id: int, exec_fd: int, gate_fd: int) -> None:
        """Take the ends of its pipes."""
        self.worker_id = worker_id
        self.exec_fd = exec_fd
        self.gate_fd = gate_fd
        self.waiting: list[tuple[int, bool, bool]] = []

    def note_waiting(self, signum: int, is_alone: bool, ends_round: bool) -> None:
        """Note a signal that is sent once it has begun."""
        if (signum, is_alone, ends_round) not in self.waiting:
            self.waiting.append((signum, is_alone, ends_round))

    def open_gate(self) -> None:
        """Let the worker begin; if it has ended, its exit tells that."""
        try:
            os.write(self.gate_fd, _BEGIN)
        except OSError:
            pass

    def give_up(self) -> None:
        """Let the worker end without having begun."""
        os.close(self.gate_fd)
        os.close(self.exec_fd)


class Failure:
    """A worker that was not forked.

    Attributes:
        worker_id: the agent's number for it.
        errno: of the failed step.
        message: for people.
    """

    __slots__ = ("errno", "message", "worker_id")

    def __init__(self, worker_id: int, code: int, message: str) -> None:
        """Take what is reported."""
        self.worker_id = worker_id
        self.errno = code
        self.message = message


class Forkserver:
    """One forkserver, and the forks that it has not answered."""

    __slots__ = ("_control", "_socket", "_unsent", "forks", "has_served", "pid")

    def __init__(self, pid: int, ours: socket.socket) -> None:
        """Take the child, and the helper's end of its socket."""
        ours.setblocking(False)
        self.pid = pid
        self.has_served = False
        self.forks: dict[int, Fork] = {}
        self._socket = ours
        self._control = Control(ours)
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def ask(self, fork: Fork, frame: bytes, fds: tuple[int, ...]) -> None:
        """Ask for a worker. `fds` are the caller's own.

        Raises:
            OSError: no descriptor is left.
        """
        self._unsent.append((memoryview(frame), tuple(os.dup(fd) for fd in fds)))
        self.forks[fork.worker_id] = fork
        self.has_served = True
        self.flush()

    def flush(self) -> bool:
        """Send what can be sent without blocking; return whether some is left."""
        try:
            while self._unsent:
                rest, fds = self._unsent[0]
                sent = socket.send_fds(self._socket, [rest], list(fds), socket.MSG_NOSIGNAL)
                _close_all(fds)  # sent with the first byte
                self._unsent[0] = rest[sent:], ()
                if sent == len(rest):
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:  # it is gone; the next read reports it
            self._drop()
        return bool(self._unsent)

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have arrived, in order; None once none comes any more."""
        try:
            return self._control.receive()
        except (ProtocolError, ValueError):  # a program that it has imported writes there
            return None

    def close(self) -> list[Failure]:
        """Forget it; return the workers that are not forked."""
        self._drop()
        self._socket.close()
        forks, self.forks = self.forks, {}
        for fork in forks.values():
            fork.give_up()
        return [Failure(id, errno.EPIPE, "the forkserver has ended") for id in forks]

    def _drop(self) -> None:
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()


class Forkservers:
    """All forkservers of a helper, by the worker id with which the agent has started them."""

    def __init__(self, poll: select.poll) -> None:
        """Begin without any.

        Args:
            poll: of the helper; it waits for their sockets, too.
        """
        self._poll = poll
        self._by_id: dict[int, Forkserver] = {}

    def __contains__(self, worker_id: int) -> bool:
        """Return whether a child of the helper is a forkserver."""
        return worker_id in self._by_id

    def add(self, worker_id: int, pid: int, ours: socket.socket) -> None:
        """Take a child that was just started, and our end of its socket."""
        server = self._by_id[worker_id] = Forkserver(pid, ours)
        self._poll.register(server.fileno(), select.POLLIN)

    def find_fork(self, worker_id: int) -> Fork | None:
        """Return a worker that was asked for and is not there yet."""
        for server in self._by_id.values():
            if worker_id in server.forks:
                return server.forks[worker_id]
        return None

    def list_forking(self) -> list[int]:
        """Return the ids of all such workers."""
        return [worker_id for server in self._by_id.values() for worker_id in server.forks]

    def ask(self, message: dict[str, Any], fds: tuple[int, ...], helper_pid: int) -> None:
        """Ask for the worker of a spawn.

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
        exec_fd, report_fd = os.pipe()
        gate_read_fd, gate_fd = os.pipe()
        fork = Fork(message["id"], exec_fd, gate_fd)
        frame = {key: message[key] for key in ("id", "argv", "env", "cpus")}
        try:
            sent = encode({"type": "fork", **frame, "helper": helper_pid})
            server.ask(fork, sent, (*fds, report_fd, gate_read_fd))
        except BaseException:
            fork.give_up()
            raise
        finally:
            os.close(report_fd)
            os.close(gate_read_fd)

    def flush(self) -> None:
        """Send what can be sent without blocking."""
        for server in self._by_id.values():
            events = select.POLLIN | (select.POLLOUT if server.flush() else 0)
            self._poll.modify(server.fileno(), events)

    def read(self, ready: list[int], helper_pid: int) -> list[tuple[Fork, int] | Failure]:
        """Return the workers that were forked, each with its pid, and those that were not.

        Args:
            ready: descriptors that can be read.
            helper_pid: who their parent has to be.
        """
        found: list[tuple[Fork, int] | Failure] = []
        for worker_id, server in list(self._by_id.items()):
            if server.fileno() not in ready:
                continue
            messages = server.receive()
            if messages is None:
                found += self.remove(worker_id)
                continue
            for message in messages:
                found += _understand(server, message, helper_pid)
        return found

    def remove(self, worker_id: int) -> list[Failure]:
        """Forget a forkserver that has ended; return the workers that are not forked."""
        server = self._by_id.pop(worker_id, None)
        if server is None:
            return []
        self._poll.unregister(server.fileno())
        return server.close()

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


def _understand(
    server: Forkserver, message: dict[str, Any], helper_pid: int
) -> list[tuple[Fork, int] | Failure]:
    fork = server.forks.pop(message.get("id", 0), None)
    if fork is None:
        return []
    match message:
        case {"type": "forked", "pid": int(pid)}:
            stat = read_stat(pid)
            if stat is not None and stat.parent == helper_pid:
                return [(fork, pid)]
            failure = Failure(fork.worker_id, errno.ESRCH, "it has ended before it began")
        case {"type": "fork_failed", "errno": int(code), "message": str(text)}:
            failure = Failure(fork.worker_id, code, text)
        case _:
            failure = Failure(fork.worker_id, errno.EPROTO, "the forkserver breaks the protocol")
    fork.give_up()
    return [failure]


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
