"""Determines the number of workers of this node and their CPUs, once, at the start.

It reads only facts that the flags need: a plain number of workers starts no probe.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from msgspec import Struct

from rallypoint.agent.machine.devices import (
    Devices,
    DevicesUnknown,
    WorkerCount,
    count_workers,
    probe_devices,
)
from rallypoint.agent.machine.numa import Binding, CannotBind, compute_cpus
from rallypoint.agent.machine.topology import TopologyUnknown, read_topology
from rallypoint.agent.round.environ import find_python, visible_device


class Placement(Struct, frozen=True):
    """The number of workers of this node, and their CPUs."""

    count: WorkerCount
    cpus: tuple[tuple[int, ...], ...] = ()
    """CPUs of the worker with each local rank; empty: workers are not bound."""


class CannotPlace(Exception):
    """The machine cannot satisfy a flag; the text is one line that begins with the flag."""


def find_placement(
    asked: int | str, binding: Binding | None, environment: Mapping[str, str]
) -> Placement:
    """Return the placement that the flags mean on this machine.

    Args:
        asked: a number of workers, or what to count, such as gpu.
        binding: what workers are bound to; None: they are not bound.
        environment: the agent's.

    Raises:
        CannotPlace: the machine cannot satisfy a flag.
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
    return probe_devices(find_python(environment), with_addresses=binding is not None)


def _bind(
    workers: int, binding: Binding, devices: Devices, usable: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of every worker, by local rank."""
    if devices.is_torch_missing:
        raise DevicesUnknown("torch, which lists the GPUs, is not installed for the workers")
    machine = read_topology(binding, usable, devices.addresses)
    return tuple(tuple(sorted(compute_cpus(binding, machine, rank))) for rank in range(workers))


def check_visible_devices(workers: int, environment: Mapping[str, str]) -> None:
    """Refuse more workers than there are visible GPUs.

    Raises:
        CannotPlace: the agent's CUDA_VISIBLE_DEVICES is shorter.
    """
    try:
        visible_device(environment, workers - 1)
    except IndexError:
        text = f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']} has fewer than "
        raise CannotPlace(f"--virtual-local-rank: {text}{workers} devices") from None
