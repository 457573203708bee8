"""The priority of a standby while it imports: it runs when no other process wants a processor.

Two things decide that. The policy of a process counts among the processes of its group only. With
sched_autogroup each session is a separate group, and each standby has a session. So the group gets
the least weight, too. In a container there is no such group; the policy alone decides there.

See sitecustomize.py for when it is imported. Standard library only, and Python 3.8 or newer.
The agent never imports this file.

Source: sched(7), "The autogroup feature" and "SCHED_IDLE"; kernel/sched/autogroup.c of Linux.
"""

from __future__ import annotations

import os
import time

AUTOGROUP = "/proc/self/autogroup"
LEAST_NICE = 19
"""The least weight of a group: 15, beside 1,024."""
TRIES = 100
AGAIN_S = 0.1
"""Without CAP_SYS_ADMIN the kernel takes one change of a group in so many seconds, of all users."""


class Priority:
    """The priority of this process, which can be lowered and brought back."""

    def __init__(self) -> None:
        """Leave it as it is."""
        self._policy: tuple[int, os.sched_param] | None = None
        self._group_nice: int | None = None
        """The value to restore; None: it was not changed."""

    def lower(self) -> None:
        """Run only when no other process wants a processor, as far as it can be taken back."""
        nice = _read_group_nice()
        if nice is not None and nice < LEAST_NICE and _set_group_nice(LEAST_NICE):
            self._group_nice = nice
        policy = os.sched_getscheduler(0)
        if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
            return
        parameters = os.sched_getparam(0)
        self._policy = policy, parameters
        can_return = _can_return(policy, parameters)
        os.sched_setscheduler(0, os.SCHED_IDLE if can_return else os.SCHED_BATCH, parameters)

    def restore(self) -> str:
        """Bring back what it was; return why that is not possible, or ""."""
        if self._policy is not None:
            policy, parameters = self._policy
            # Every thread has a policy, those of libraries too.
            for task in os.listdir("/proc/self/task"):
                try:
                    os.sched_setscheduler(int(task), policy, parameters)
                except ProcessLookupError:  # a thread of a library that has just ended
                    pass
        if self._group_nice is not None and not _set_group_nice(self._group_nice):
            return "its session cannot get its priority back: " + AUTOGROUP + " takes no change"
        return ""


def _read_group_nice() -> int | None:
    """Return the nice value of this session's group; None: it is no separate group."""
    if os.getsid(0) != os.getpid():
        return None
    try:
        with open(AUTOGROUP, "rb") as file:
            words = file.read().split()  # "/autogroup-25 nice 0"
        return int(words[2])
    except (OSError, IndexError, ValueError):  # a kernel without such groups
        return None


def _set_group_nice(nice: int) -> bool:
    """Set it; return whether that has worked."""
    for _ in range(TRIES):
        try:
            fd = os.open(AUTOGROUP, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, str(nice).encode("ascii"))
            finally:
                os.close(fd)
            return True
        except BlockingIOError:  # EAGAIN: another process was first
            time.sleep(AGAIN_S)
        except OSError:
            return False
    return False


def _can_return(policy: int, parameters: os.sched_param) -> bool:
    """Return whether a process of this user may leave SCHED_IDLE: one of them tries.

    The kernel asks for CAP_SYS_NICE outside of any user namespace, or RLIMIT_NICE.
    """
    child = os.fork()
    if child == 0:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, parameters)
            os.sched_setscheduler(0, policy, parameters)
        except OSError:
            os._exit(1)
        finally:
            os._exit(0)
    try:
        return os.waitpid(child, 0)[1] == 0
    except ChildProcessError:  # the program ignores SIGCHLD, so the kernel keeps no status
        return False
