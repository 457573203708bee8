"""This host: whether its limits leave enough for an agent and its workers."""

from __future__ import annotations

from rallypoint.base.needs import TASKS, TASKS_PER_WORKER
from rallypoint.cli.operator.doctor.facts import Machine
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


def check_machine(machine: Machine) -> list[Finding]:
    """Judge all limits of a host."""
    return [
        *check_files(machine),
        *check_folder(machine),
        *check_shared_memory(machine),
        *check_ports(machine),
        *check_kernel(machine),
        *check_processes(machine),
    ]


def check_kernel(machine: Machine) -> list[Finding]:
    """Judge whether an agent can use what it needs of the kernel."""
    usable = [need.name for need in machine.kernel if not need.lack]
    return [
        *([ok(KERNEL, f"agents can use {', '.join(usable)}")] if usable else []),
        *(
            ok(KERNEL, f"{need.lack}; {need.substitute}")
            if need.substitute
            else problem(KERNEL, need.lack, need.advice)
            for need in machine.kernel
            if need.lack
        ),
    ]


def check_processes(machine: Machine) -> list[Finding]:
    """Judge whether an agent can start its processes and threads."""
    wanted = TASKS + TASKS_PER_WORKER
    if machine.startable >= wanted:
        return [ok(PROCESSES, "an agent can start its processes and threads")]
    text = (
        f"only {machine.startable} more processes and threads can start; an agent with one worker "
        f"needs about {wanted}"
    )
    return [problem(PROCESSES, text, machine.startable_advice)]


def check_folder(machine: Machine) -> list[Finding]:
    """Judge whether an agent has a place for its sockets and the output of its workers."""
    if not machine.folder_lack:
        return []
    lack, _, advice = machine.folder_lack.partition(": ")
    return [problem(FOLDER, lack, advice)]


def check_files(machine: Machine) -> list[Finding]:
    """Judge how many files a process may open."""
    limit = machine.files_soft
    if limit < 0:
        return [ok(FILES, "no limit")]
    text = f"a process may open {limit:,}"
    if limit >= FILES_COMMON:
        return [ok(FILES, text)]
    high = 65_536 if machine.files_hard < 0 else machine.files_hard
    raised = f"ulimit -n {high}" if high > limit else "the limit of the service, or limits.conf"
    advice = f"raise it where agents and coordinator start: {raised}"
    if 0 <= machine.files_hard < FILES_MIN:
        return [problem(FILES, f"{text}: too few for an agent and its workers", advice)]
    return [warning(FILES, f"{text}: data loaders may need more", advice)]


def check_shared_memory(machine: Machine) -> list[Finding]:
    """Judge how much memory processes of this host can share."""
    size, free = machine.shared_memory_bytes, machine.shared_memory_free_bytes
    if size is None or not machine.is_shared_memory_writable:
        what = "there is no /dev/shm" if size is None else "/dev/shm cannot be written"
        text = f"{what}: data loaders and NCCL fail without it"
        return [problem(SHARED_MEMORY, text, "mount a tmpfs there; in a container: --shm-size 8g")]
    text = f"/dev/shm has {_show(free)} free of {_show(size)}"
    if size < SHARED_BYTES_MIN:
        advice = (
            "data loaders may end with a bus error; in a container: --shm-size 8g or --ipc host"
        )
        return [warning(SHARED_MEMORY, text, advice)]
    if free < SHARED_BYTES_MIN:
        advice = "delete what ended jobs have left there: ls -l /dev/shm"
        return [warning(SHARED_MEMORY, text, advice)]
    return [ok(SHARED_MEMORY, text)]


def check_ports(machine: Machine) -> list[Finding]:
    """Judge whether workers find free ports."""
    if machine.port_error:
        text = f"no free port can be opened: {machine.port_error}"
        return [problem(PORTS, text, "look at the open sockets: ss --summary")]
    if not machine.port_low:
        return [ok(PORTS, "a free port can be opened")]
    count = machine.port_high - machine.port_low + 1
    text = f"{count:,} for connections ({machine.port_low} to {machine.port_high})"
    if count < PORTS_MIN:
        advice = 'widen the range: sysctl net.ipv4.ip_local_port_range="32768 60999"'
        return [warning(PORTS, text, advice)]
    return [ok(PORTS, text)]


def _show(size: int) -> str:
    mebibytes = size / MEBIBYTE
    if mebibytes >= 1_024:
        return f"{mebibytes / 1_024:.1f} GiB".replace(".0 ", " ")
    return f"{mebibytes:.0f} MiB"
