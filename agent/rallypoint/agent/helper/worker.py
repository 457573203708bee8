"""One worker of a helper: what is known of it until it is reaped.

Imported by the helper: standard library only, and no module that costs memory.
"""

from __future__ import annotations

import os
import signal
import time


class Worker:
    """One spawned child.

    Attributes:
        worker_id: the agent's number for it.
        pid: the child, which is also its process group and session; 0: no forkserver has forked it
            yet.
        exec_fd: read end of the pipe that closes when the child has exec'ed; -1 from then on.
        gate_fd: write end of the gate of a child that is forked by a forkserver; -1: it has none.
        waiting: signals that arrived before exec, when the child could still lose them, each with
            whether it is for the child alone, and whether it ends the round of the child.
        signalled_ns: monotonic time of the first signal that ends its round; None: none yet.
        was_killed: such a signal was SIGKILL.
    """

    __slots__ = ("exec_fd", "gate_fd", "pid", "signalled_ns", "waiting", "was_killed", "worker_id")

    def __init__(self, worker_id: int, pid: int, exec_fd: int, gate_fd: int = -1) -> None:
        """Take a child that was just forked, or will be."""
        self.worker_id = worker_id
        self.pid = pid
        self.exec_fd = exec_fd
        self.gate_fd = gate_fd
        self.waiting: list[tuple[int, bool, bool]] = []
        self.signalled_ns: int | None = None
        self.was_killed = False

    def open_gate(self) -> None:
        """Let it begin; if it has ended, its exit tells that."""
        try:
            os.write(self.gate_fd, b"1")
        except OSError:
            pass

    def give_up(self) -> None:
        """Let it end without having begun."""
        os.close(self.exec_fd)
        self.close_gate()

    def close_gate(self) -> None:
        """Let its program begin: no signal waits any more."""
        if self.gate_fd >= 0:
            os.close(self.gate_fd)
            self.gate_fd = -1

    def note_signal(self, signum: int) -> None:
        """Note that a signal that ends its round is sent now."""
        if self.signalled_ns is None:
            self.signalled_ns = time.monotonic_ns()
        self.was_killed = self.was_killed or signum == signal.SIGKILL

    def note_waiting(self, signum: int, is_alone: bool, ends_round: bool) -> None:
        """Note a signal that is sent once it has exec'ed."""
        if (signum, is_alone, ends_round) not in self.waiting:
            self.waiting.append((signum, is_alone, ends_round))


def signal_own(pid: int, signum: int, *, is_alone: bool) -> None:
    """Signal an unreaped child, whose pid cannot have been reused, or its group."""
    try:
        if is_alone:
            os.kill(pid, signum)
            return
        try:
            os.killpg(pid, signum)
        except ProcessLookupError:  # the child has not called setsid yet
            os.kill(pid, signum)
    except OSError:  # EPERM: the whole group changed its user; EINVAL: no such signal
        pass
