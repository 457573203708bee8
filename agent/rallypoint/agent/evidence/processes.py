"""What the kernel says about a worker: /proc/PID of its main thread. No read there blocks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from rallypoint.agent.helper.descendants import list_descendants
from rallypoint.v1 import evidence_pb2

if TYPE_CHECKING:
    State: TypeAlias = evidence_pb2.ProcessState.ValueType

READ_BYTES_MAX = 16_384
"""Of one file in /proc."""
PROCESSES_MAX = 256
"""Of one worker, whose use is looked at."""
_TICKS = os.sysconf("SC_CLK_TCK")
_STATES: dict[str, State] = {
    "R": evidence_pb2.PROCESS_STATE_RUNNING,
    "S": evidence_pb2.PROCESS_STATE_SLEEPING,
    "I": evidence_pb2.PROCESS_STATE_SLEEPING,
    "D": evidence_pb2.PROCESS_STATE_UNINTERRUPTIBLE,
    "T": evidence_pb2.PROCESS_STATE_STOPPED,
    "t": evidence_pb2.PROCESS_STATE_TRACED,
    "Z": evidence_pb2.PROCESS_STATE_ENDED,
    "X": evidence_pb2.PROCESS_STATE_ENDED,
}
"""By the letter in /proc/PID/stat; see proc_pid_stat(5)."""


class ProcessFacts(Struct, frozen=True):
    """What a process does, as far as the kernel says."""

    state: State = evidence_pb2.PROCESS_STATE_ENDED
    waits_in: str = ""
    """Where its main thread waits in the kernel; empty: not known."""
    cpu_ms: int = 0
    """Processor time of all its threads."""


def read_process(pid: int) -> ProcessFacts:
    """Return what a process does; one that does not exist has ended."""
    # The name of the program may hold anything, also spaces and parentheses.
    fields = _read(pid, "stat").rpartition(")")[2].split()
    try:
        state = _STATES.get(fields[0], evidence_pb2.PROCESS_STATE_UNSPECIFIED)
        cpu_ms = (int(fields[11]) + int(fields[12])) * 1000 // _TICKS
    except (IndexError, ValueError):
        return ProcessFacts()
    waits_in = _read(pid, "wchan").strip()
    return ProcessFacts(state, "" if waits_in == "0" else waits_in, cpu_ms)


class Usage(Struct, frozen=True):
    """What a process has used so far."""

    cpu_ms: int
    """Processor time of all its threads."""
    written: int
    """Bytes that it has written, wherever to; 0 where the kernel does not tell."""


def read_usage(pid: int) -> dict[int, Usage]:
    """Return what a process and its descendants have used, by process id.

    A worker may be a shell that waits for the program.
    """
    pids = (pid, *list_descendants(pid)[: PROCESSES_MAX - 1])
    return {one: Usage(read_process(one).cpu_ms, _read_written(one)) for one in pids}


def _read_written(pid: int) -> int:
    for line in _read(pid, "io").splitlines():
        name, _, value = line.partition(":")
        if name == "wchar" and value.strip().isdigit():
            return int(value)
    return 0


def is_signal_open(pid: int, signum: signal.Signals) -> bool | None:
    """Return whether a signal is pending, or its handler runs in the main thread.

    While a handler runs, its signal is blocked in that thread. None: that is not known.
    """
    bit = 1 << (signum - 1)
    masks = dict.fromkeys(("SigPnd", "ShdPnd", "SigBlk"), 0)
    try:
        for line in _read(pid, "status").splitlines():
            name, _, value = line.partition(":")
            if name in masks:
                masks[name] = int(value, 16)
    except ValueError:
        return None
    return any(mask & bit for mask in masks.values())


def find_link(pid: int, fd: int) -> str:
    """Return which file a process has open under a number; "" if none, or if that is not shown."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""


def has_socket(pid: int, path: str) -> bool:
    """Return whether a process has the Unix socket open that is bound to a path.

    A thread that waits for a connection keeps a socket although the program has closed it.
    """
    bound: set[str] = set()
    try:
        with open(f"/proc/{pid}/net/unix", "rb") as file:
            for line in file:
                words = os.fsdecode(line).rstrip("\n").split(maxsplit=7)
                if words[-1] == path:
                    bound.add(f"socket:[{words[6]}]")
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(find_link(pid, int(number)) in bound for number in numbers)


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", "rb", 0) as file:
            return (file.read(READ_BYTES_MAX) or b"").decode("utf-8", "replace")
    except OSError:  # it has ended, or hides that
        return ""
