"""Machines made of files: CPUs, caches, NUMA nodes and GPUs as sysfs shows them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of equal nodes; CPU `c` and CPU `c + cores` are threads of core `c`."""

    sockets: int
    nodes_per_socket: int
    caches_per_node: int
    cores_per_cache: int
    threads: int
    gpu_nodes: tuple[int, ...]
    """NUMA node that the kernel reports for every GPU; -1: none."""
    possible: str = ""
    """Nodes that the kernel lists as possible, if they differ from the existing ones."""

    @property
    def cores(self) -> int:
        return self.nodes * self.caches_per_node * self.cores_per_cache

    @property
    def nodes(self) -> int:
        return self.sockets * self.nodes_per_socket

    @property
    def cpus(self) -> range:
        return range(self.cores * self.threads)

    @property
    def addresses(self) -> list[str]:
        return [f"0000:{0x10 + gpu:02x}:00.0" for gpu in range(len(self.gpu_nodes))]

    def write(self, sys: Path) -> None:
        """Write the files that a binding reads, and some that it must skip."""
        system = sys / "devices/system"
        for cpu in self.cpus:
            self._write_cpu(system / f"cpu/cpu{cpu}", cpu)
        put(system / "node/possible", self.possible or f"0-{self.nodes - 1}")
        per_node = self.cores // self.nodes
        for node in range(self.nodes):
            cpus = [cpu for cpu in self.cpus if cpu % self.cores // per_node == node]
            put(system / f"node/node{node}/cpulist", ranges(cpus))
        for address, gpu_node in zip(self.addresses, self.gpu_nodes, strict=True):
            put(sys / f"bus/pci/devices/{address}/numa_node", str(gpu_node))

    def _write_cpu(self, folder: Path, cpu: int) -> None:
        core = cpu % self.cores
        siblings = [other for other in self.cpus if other % self.cores == core]
        cache = core // self.cores_per_cache
        sharers = [c for c in self.cpus if c % self.cores // self.cores_per_cache == cache]
        socket = core // (self.cores // self.sockets)
        put(folder / "topology/physical_package_id", str(socket))
        put(folder / "topology/thread_siblings_list", ranges(siblings))
        for index, level, kind, cpus in (
            (0, 1, "Data", siblings),
            (1, 1, "Instruction", siblings),
            (2, 3, "Unified", sharers),
            (3, 4, "Instruction", list(self.cpus)),
        ):
            put(folder / f"cache/index{index}/level", str(level))
            put(folder / f"cache/index{index}/type", kind)
            put(folder / f"cache/index{index}/shared_cpu_list", ranges(cpus))


def draw_machine(seed: int) -> Machine:
    """Return a machine of at most 48 CPUs."""
    dice = random.Random(seed)
    machine = Machine(
        sockets=dice.randint(1, 2),
        nodes_per_socket=dice.randint(1, 2),
        caches_per_node=dice.randint(1, 2),
        cores_per_cache=dice.randint(1, 3),
        threads=dice.randint(1, 2),
        gpu_nodes=(),
    )
    nodes = [dice.randrange(machine.nodes) for _ in range(dice.randint(1, 5))]
    if machine.nodes == 1:
        nodes = [dice.choice((0, -1)) for _ in nodes]
    return Machine(
        machine.sockets,
        machine.nodes_per_socket,
        machine.caches_per_node,
        machine.cores_per_cache,
        machine.threads,
        tuple(nodes),
    )


def put(file: Path, text: str) -> None:
    """Write a file as the kernel does, with its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def ranges(cpus: Sequence[int]) -> str:
    """Write a list as the kernel does: 0-3,8."""
    begins = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    pairs = zip(begins, ends, strict=True)
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in pairs)
