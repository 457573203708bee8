"""How many workers this node has, and which CPUs each of them gets: found out once, at the start.

Only what is asked for is looked at: for plain numbers nothing is started and nothing is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rallypoint.agent.core.numa import Binding, CannotBind, compute_cpus
from rallypoint.agent.devices import (
    Devices,
    DevicesUnknown,
    WorkerCount,
    count_workers,
    probe_devices,
)
from rallypoint.agent.environ import visible_device
from rallypoint.agent.topology import TopologyUnknown, read_topology


@dataclass(frozen=True, slots=True)
class Placement:
    """The workers of this node, as they were found to be."""

    count: WorkerCount
    cpus: tuple[tuple[int, ...], ...] = ()
    """What the worker of each local rank is bound to; empty: workers are not bound."""


class CannotPlace(Exception):
    """The machine has not what was asked for; the text is one line that begins with the flag."""


def find_placement(
    asked: int | str, binding: Binding | None, environment: Mapping[str, str]
) -> Placement:
    """Find out what the flags mean on this machine.

    Args:
        asked: a number of workers, or a word that says what to count.
        binding: what workers are bound to; None: they are not.
        environment: the agent's.

    Raises:
        CannotPlace: they mean nothing here.
    """
    flag = "--numa-binding" if isinstance(asked, int) else f"--nproc-per-node={asked}"
    usable = os.sched_getaffinity(0)
    try:
        is_known = binding is None and (isinstance(asked, int) or asked == "cpu")
        devices = Devices() if is_known else _probe(environment, binding)
        count = count_workers(asked, devices, len(usable))
        if binding is None:
            return Placement(count)
        flag = "--numa-binding"
        return Placement(count, _bind(count.number, binding, devices, usable))
    except (DevicesUnknown, TopologyUnknown, CannotBind) as error:
        raise CannotPlace(f"{flag}: {error}") from error


def _probe(environment: Mapping[str, str], binding: Binding | None) -> Devices:
    python = environment.get("PYTHON_EXEC") or sys.executable
    return probe_devices(python, with_addresses=binding is not None)


def _bind(
    workers: int, binding: Binding, devices: Devices, usable: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of every worker, by local rank."""
    if devices.is_torch_missing:
        raise DevicesUnknown("torch, which knows the GPUs, is not installed where workers run")
    machine = read_topology(binding, usable, devices.addresses)
    return tuple(tuple(sorted(compute_cpus(binding, machine, rank))) for rank in range(workers))


def check_visible_devices(workers: int, environment: Mapping[str, str]) -> None:
    """Refuse more workers than there are GPUs to give one to each.

    Raises:
        CannotPlace: the agent's CUDA_VISIBLE_DEVICES is shorter.
    """
    try:
        visible_device(environment, workers - 1)
    except IndexError:
        text = f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']} has fewer than "
        raise CannotPlace(f"--virtual-local-rank: {text}{workers} devices") from None
