"""Runs a command whose system calls fail: an old kernel, or an old profile of a container runtime.

As a program: `python sandbox.py ERRNO NUMBER,NUMBER… COMMAND…`. The filter of system calls stays
in force for all that the command starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

import pytest

PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434
"""The same on every architecture, like all calls from 424 on."""
CLONE3 = 435
SINCE_5_1 = tuple(range(424, 462))
KILL, CLONE, PRCTL = 62, 56, 157
"""Of x86-64."""

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
# Source: linux/bpf_common.h, linux/seccomp.h
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.POINTER(_Instruction))]


def sandbox(code: int, *calls: int) -> tuple[str, ...]:
    """Return what to put before a command: its system calls of these numbers fail.

    Skips the test where the numbers are others.
    """
    if platform.machine() != "x86_64":
        pytest.skip("the numbers of system calls are those of x86-64")
    return (sys.executable, __file__, str(code), ",".join(map(str, calls)))


def refuse(code: int, calls: tuple[int, ...]) -> None:
    """Let these system calls fail in this process, and in all that it starts."""
    steps = [(_LOAD, 0, 0, 0)]  # the number of the call
    steps += [(_JUMP_IF_EQUAL, len(calls) - at, 0, call) for at, call in enumerate(calls)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE | code)]
    array = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    program = _Program(len(steps), array)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "cannot install a filter of system calls")


if __name__ == "__main__":
    refuse(int(sys.argv[1]), tuple(map(int, sys.argv[2].split(","))))
    os.execvp(sys.argv[3], sys.argv[3:])

OLD_KERNEL = (errno.ENOSYS, *SINCE_5_1)
OLD_PROFILE = (errno.EPERM, *(call for call in SINCE_5_1 if call != CLONE3))
