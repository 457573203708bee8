"""Reads what this host allows its processes, and what is installed here."""

from __future__ import annotations

import os
import platform
import resource
import socket
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from rallypoint.base.limits import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from rallypoint.base.needs import (
    TASKS,
    TASKS_PER_WORKER,
    advise_tasks,
    count_startable,
    find_folder_lack,
    try_kernel,
)
from rallypoint.cli.operator.doctor.facts import Machine, Software

SHARED_MEMORY = Path("/dev/shm")
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def read_machine(shared_memory: Path = SHARED_MEMORY, port_range: Path = PORT_RANGE) -> Machine:
    """Return the limits of this host, for processes like this one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    size, free = None, 0
    with suppress(OSError):
        found = os.statvfs(shared_memory)
        size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    low = high = 0
    with suppress(OSError, ValueError):
        low, high = map(int, port_range.read_text().split())
    return Machine(
        files_soft=_limit(soft),
        files_hard=_limit(hard),
        shared_memory_bytes=size,
        shared_memory_free_bytes=free,
        is_shared_memory_writable=os.access(shared_memory, os.W_OK),
        port_low=low,
        port_high=high,
        port_error=_open_port(),
        kernel=tuple(try_kernel()),
        startable=count_startable(TASKS + TASKS_PER_WORKER),
        startable_advice=advise_tasks(),
        folder_lack=find_folder_lack(),
    )


def read_software() -> Software:
    """Return the versions that matter to the coordinator and to who reads a report."""
    return Software(
        rallypoint=version("rallypoint"),
        protocol_min=PROTOCOL_VERSION_MIN,
        protocol_max=PROTOCOL_VERSION,
        python=platform.python_version(),
        grpc=version("grpcio"),
    )


def _limit(value: int) -> int:
    return -1 if value == resource.RLIM_INFINITY else value


def _open_port() -> str:
    """Return why no free port can be opened; empty: one can."""
    try:
        with socket.socket() as probe:
            probe.bind(("", 0))
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""
