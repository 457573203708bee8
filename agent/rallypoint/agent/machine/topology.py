"""The machine's CPUs, caches, NUMA nodes and the nodes of its GPUs, read from sysfs.

Reads only the files that a binding needs: a virtual machine may not have the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rallypoint.agent.machine.numa import Binding, Cpus, Topology

_PACKAGE = "topology/physical_package_id"
_SIBLINGS = "topology/thread_siblings_list"
_DATA_CACHES = ("Unified", "Data")


class TopologyUnknown(Exception):
    """The kernel does not report a needed fact; the text is one line that names the file."""


def read_topology(
    binding: Binding,
    allowed: Collection[int],
    addresses: Sequence[str],
    sys: Path = Path("/sys"),
) -> Topology:
    """Read the topology that a binding needs.

    Args:
        binding: fields that it does not need stay empty.
        allowed: CPUs that the agent may use.
        addresses: PCI address of every GPU, in torch's order.
        sys: mount point of sysfs.

    Raises:
        TopologyUnknown: a file is missing or malformed.
    """
    usable = frozenset(allowed)
    folders = {cpu: sys / f"devices/system/cpu/cpu{cpu}" for cpu in sorted(usable)}
    sockets: dict[int, int] = {}
    cores: dict[int, Cpus] = {}
    caches: dict[int, Cpus] = {}
    try:
        match binding:
            case Binding.NODE:
                pass
            case Binding.SOCKET:
                sockets = {cpu: _read_int(folders[cpu] / _PACKAGE) for cpu in folders}
            case Binding.EXCLUSIVE:
                cores = {cpu: _read_cpus(folders[cpu] / _SIBLINGS) for cpu in folders}
            case Binding.CORE_COMPLEX:
                caches = {cpu: _read_last_cache(folders[cpu] / "cache") for cpu in folders}
        nodes = _read_nodes(sys / "devices/system/node", usable)
        gpus = [sys / "bus/pci/devices" / address / "numa_node" for address in addresses]
        # A machine with one node reports -1.
        gpu_nodes = tuple(max(0, _read_int(file)) for file in gpus)
    except OSError as error:
        raise TopologyUnknown(f"cannot read {error.filename}: {error.strerror}") from error
    return Topology(nodes, sockets, cores, caches, gpu_nodes)


def _read_nodes(folder: Path, usable: Cpus) -> dict[int, Cpus]:
    """Return the usable CPUs of every node that exists."""
    nodes = _read_cpus(folder / "possible")
    files = {node: folder / f"node{node}/cpulist" for node in sorted(nodes)}
    return {node: _read_cpus(file) & usable for node, file in files.items() if file.exists()}


def _read_last_cache(folder: Path) -> Cpus:
    """Return the CPUs that share the data cache of the highest level."""
    levels = [
        (_read_int(index / "level"), index)
        for index in sorted(folder.glob("index*"))
        if _read(index / "type") in _DATA_CACHES
    ]
    if not levels:
        raise TopologyUnknown(f"{folder} names no data cache")
    return _read_cpus(max(levels)[1] / "shared_cpu_list")


def _read_cpus(file: Path) -> Cpus:
    """Read a list such as `0-2,4`."""
    cpus: set[int] = set()
    text = _read(file)
    try:
        for part in filter(None, text.split(",")):
            low, _, high = part.partition("-")
            cpus.update(range(int(low), int(high or low) + 1))
    except ValueError:
        raise TopologyUnknown(f"{file} holds {text!r}, not a list of numbers") from None
    return frozenset(cpus)


def _read_int(file: Path) -> int:
    text = _read(file)
    try:
        return int(text)
    except ValueError:
        raise TopologyUnknown(f"{file} holds {text!r}, not a number") from None


def _read(file: Path) -> str:
    return file.read_text(encoding="ascii", errors="replace").strip()
