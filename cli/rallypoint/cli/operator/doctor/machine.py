"""This host: whether its limits leave enough for an agent and its workers."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from rallypoint.base.needs import (
    TASKS,
    TASKS_PER_WORKER,
    Need,
    advise_tasks,
    count_startable,
    find_folder_lack,
    try_kernel,
)
from rallypoint.cli.operator.doctor.findings import Finding, ok, problem, warning

KERNEL, PROCESSES = "kernel", "processes"
FILES, FOLDER = "open files", "temporary files"
SHARED_MEMORY, PORTS = "shared memory", "ports"
FILES_MIN = 256
"""An agent, its workers' pipes and a data loader. It raises its own limit as far as it may."""
FILES_COMMON = 1_024
"""The usual limit. Data loaders and large jobs may need more."""
MEBIBYTE = 1_048_576
SHARED_BYTES_MIN = 1_024 * MEBIBYTE
"""Data loaders and NCCL put buffers there. Containers begin with 64 MiB, which is too little."""
PORTS_MIN = 1_000
"""Collectives of one node with many devices open hundreds of connections."""

_SHARED = Path("/dev/shm")
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def examine_machine() -> Iterator[Finding]:
    """Yield the findings about this host, for processes like this one."""
    yield check_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    if lack := find_folder_lack():
        yield check_folder(lack)
    yield check_shared_memory(*read_shared_memory())
    yield check_ports()
    yield from check_kernel(try_kernel())
    yield check_processes(count_startable(TASKS + TASKS_PER_WORKER), advise_tasks())


def check_kernel(needs: Iterable[Need]) -> list[Finding]:
    """Judge whether an agent can use what it needs of the kernel."""
    usable = [need.name for need in needs if not need.lack]
    return [
        *([ok(KERNEL, f"agents can use {', '.join(usable)}")] if usable else []),
        *(
            ok(KERNEL, f"{need.lack}; {need.substitute}")
            if need.substitute
            else problem(KERNEL, need.lack, need.advice)
            for need in needs
            if need.lack
        ),
    ]


def check_processes(startable: int, advice: str) -> Finding:
    """Judge whether an agent can start its processes and threads.

    Args:
        startable: how many more can start, up to what a small agent needs.
        advice: what to do if they are too few.
    """
    wanted = TASKS + TASKS_PER_WORKER
    if startable >= wanted:
        return ok(PROCESSES, "an agent can start its processes and threads")
    text = (
        f"only {startable} more processes and threads can start; an agent with one worker "
        f"needs about {wanted}"
    )
    return problem(PROCESSES, text, advice)


def check_folder(lack: str) -> Finding:
    """Say why an agent has no place for its sockets and the output of its workers."""
    text, _, advice = lack.partition(": ")
    return problem(FOLDER, text, advice)


def check_files(soft: int, hard: int) -> Finding:
    """Judge how many files a process may open, and to how many it may raise that; -1: no limit."""
    if soft == resource.RLIM_INFINITY:
        return ok(FILES, "no limit")
    text = f"a process may open {soft:,}"
    if soft >= FILES_COMMON:
        return ok(FILES, text)
    high = 65_536 if hard == resource.RLIM_INFINITY else hard
    raised = f"ulimit -n {high}" if high > soft else "the limit of the service, or limits.conf"
    advice = f"raise it where agents and coordinator start: {raised}"
    if high < FILES_MIN:
        return problem(FILES, f"{text}: too few for an agent and its workers", advice)
    return warning(FILES, f"{text}: data loaders may need more", advice)


def read_shared_memory(folder: Path = _SHARED) -> tuple[int | None, int]:
    """Return the bytes that processes can share, and how many are free; None: there is no place."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None, 0
    if not os.access(folder, os.W_OK):
        return -1, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def check_shared_memory(size: int | None, free: int = 0) -> Finding:
    """Judge how much memory processes of this host can share.

    Args:
        size: in bytes; None: there is no place for it; -1: it cannot be written.
        free: of them.
    """
    if size is None or size < 0:
        what = "there is no /dev/shm" if size is None else "/dev/shm cannot be written"
        text = f"{what}: data loaders and NCCL fail without it"
        return problem(SHARED_MEMORY, text, "mount a tmpfs there; in a container: --shm-size 8g")
    text = f"/dev/shm has {_show(free)} free of {_show(size)}"
    if size < SHARED_BYTES_MIN:
        advice = (
            "data loaders may end with a bus error; in a container: --shm-size 8g or --ipc host"
        )
        return warning(SHARED_MEMORY, text, advice)
    if free < SHARED_BYTES_MIN:
        advice = "delete what ended jobs have left there: ls -l /dev/shm"
        return warning(SHARED_MEMORY, text, advice)
    return ok(SHARED_MEMORY, text)


def check_ports(ports: Path = _PORTS) -> Finding:
    """Judge whether workers find free ports."""
    try:
        socket.create_server(("", 0)).close()
    except OSError as error:
        text = f"no free port can be opened: {error.strerror or error}"
        return problem(PORTS, text, "look at the open sockets: ss --summary")
    try:
        low, high = map(int, ports.read_text().split())
    except (OSError, ValueError):
        return ok(PORTS, "a free port can be opened")
    text = f"{high - low + 1:,} for connections ({low} to {high})"
    if high - low + 1 < PORTS_MIN:
        advice = 'widen the range: sysctl net.ipv4.ip_local_port_range="32768 60999"'
        return warning(PORTS, text, advice)
    return ok(PORTS, text)


def _show(size: int) -> str:
    mebibytes = size / MEBIBYTE
    if mebibytes >= 1_024:
        return f"{mebibytes / 1_024:.1f} GiB".replace(".0 ", " ")
    return f"{mebibytes:.0f} MiB"
