"""The CPUs that a worker is bound to: those near the GPU whose index is its local rank.

The four modes are those of torch 2.13's `torch.numa`. CPUs are the kernel's logical ones,
restricted to those that the agent may use. One thing differs from torch: the search for the nodes
of a socket skips a NUMA node without such CPUs, which has only memory or is offline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from msgspec import Struct

Cpus = frozenset[int]


class Binding(str, Enum):  # noqa: UP042  # the Python API has it, too: it prints as torch's does
    """The CPUs that a worker is bound to."""

    NODE = "node"
    """All CPUs of the GPU's NUMA node."""
    SOCKET = "socket"
    """All CPUs of all nodes of its socket."""
    EXCLUSIVE = "exclusive"
    """An even share of the node's cores, hyperthreads included, for each of the node's GPUs."""
    CORE_COMPLEX = "core-complex"
    """The CPUs below one last-level cache of the node, in turn."""


class Topology(Struct, frozen=True):
    """The parts of a machine that the kernel reports."""

    nodes: Mapping[int, Cpus]
    """CPUs of every NUMA node, out of those that the agent may use."""
    sockets: Mapping[int, int]
    """Package number of every such CPU; needed for SOCKET."""
    cores: Mapping[int, Cpus]
    """All CPUs of the core of every such CPU, also unusable ones; needed for EXCLUSIVE."""
    caches: Mapping[int, Cpus]
    """All CPUs that share its last-level cache, likewise; needed for CORE_COMPLEX."""
    gpu_nodes: tuple[int, ...]
    """NUMA node of every GPU that torch sees, in its order."""


class CannotBind(Exception):
    """The machine has no such CPUs for this worker; the text is one line."""


def compute_cpus(binding: Binding, machine: Topology, gpu: int) -> Cpus:
    """Return the CPUs of the worker whose local rank is `gpu`: one or more.

    Raises:
        CannotBind: there is no such GPU, or no CPU for it.
    """
    if gpu >= len(machine.gpu_nodes):
        raise CannotBind(f"worker {gpu} has no GPU: torch sees {len(machine.gpu_nodes)}")
    node = machine.gpu_nodes[gpu]
    cpus = machine.nodes.get(node, frozenset())
    if not cpus:
        raise CannotBind(f"this process may use no CPU of NUMA node {node}, where GPU {gpu} is")
    sharers = [other for other, of in enumerate(machine.gpu_nodes) if of == node]
    place = sharers.index(gpu)
    match binding:
        case Binding.NODE:
            return cpus
        case Binding.SOCKET:
            return _of_socket(machine, machine.sockets[min(cpus)])
        case Binding.EXCLUSIVE:
            return _share(_group(cpus, lambda cpu: min(machine.cores[cpu])), place, len(sharers))
        case Binding.CORE_COMPLEX:
            groups = _group(cpus, lambda cpu: min(machine.caches[cpu]))
            # The largest group first: a small group of usable CPUs is of little use.
            groups.sort(key=len, reverse=True)
            return groups[place % len(groups)]


def _of_socket(machine: Topology, socket: int) -> Cpus:
    nodes = (cpus for cpus in machine.nodes.values() if cpus)
    return frozenset().union(*(cpus for cpus in nodes if machine.sockets[min(cpus)] == socket))


def _group(cpus: Iterable[int], name: Callable[[int], int]) -> list[Cpus]:
    """Return the groups of CPUs with the same name, sorted by name."""
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(name(cpu), set()).add(cpu)
    return [frozenset(groups[key]) for key in sorted(groups)]


def _share(cores: list[Cpus], place: int, places: int) -> Cpus:
    """Return the share of one of `places`; the first ones get the remaining cores."""
    each, more = divmod(len(cores), places)
    if not each:
        raise CannotBind(f"{places} GPUs share a NUMA node with {len(cores)} cores")
    begin = place * each + min(place, more)
    return frozenset().union(*cores[begin : begin + each + (place < more)])
