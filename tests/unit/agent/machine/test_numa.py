"""The CPUs that a worker is bound to, on machines made of files, compared with torch."""

from __future__ import annotations

import builtins
import os
import random
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.agent.machine.numa import Binding, CannotBind, Topology, compute_cpus
from rallypoint.agent.machine.topology import TopologyUnknown, read_topology


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


# CPU n and n + 16 are one core; nodes 0 to 3 have cores 0-3, 4-7, 8-11, 12-15, in two caches each;
# nodes 0 and 1 are one socket.
BIG = Machine(
    sockets=2,
    nodes_per_socket=2,
    caches_per_node=2,
    cores_per_cache=2,
    threads=2,
    gpu_nodes=(3, 0, 0, 1, 0),
)
EVERYTHING = "0-31"


def cpus(text: str) -> frozenset[int]:
    return frozenset(
        cpu
        for part in text.split(",")
        for low, _, high in [part.partition("-")]
        for cpu in range(int(low), int(high or low) + 1)
    )


def bind(
    machine: Machine, folder: Path, mode: str, gpu: int, allowed: Collection[int] = ()
) -> frozenset[int]:
    binding = Binding(mode)
    usable = allowed or machine.cpus
    return compute_cpus(binding, read_topology(binding, usable, machine.addresses, folder), gpu)


@pytest.mark.parametrize(
    ("mode", "gpu", "allowed", "expected"),
    [
        ("node", 0, EVERYTHING, "12-15,28-31"),
        ("node", 1, EVERYTHING, "0-3,16-19"),
        ("node", 2, EVERYTHING, "0-3,16-19"),
        ("node", 1, "1-2,16,20-31", "1-2,16"),
        ("socket", 0, EVERYTHING, "8-15,24-31"),
        ("socket", 3, EVERYTHING, "0-7,16-23"),
        ("socket", 3, "3,5-6,9", "3,5-6"),
        # Four cores for the three GPUs 1, 2 and 4: the first has the one that is left over.
        ("exclusive", 1, EVERYTHING, "0-1,16-17"),
        ("exclusive", 2, EVERYTHING, "2,18"),
        ("exclusive", 4, EVERYTHING, "3,19"),
        ("exclusive", 0, EVERYTHING, "12-15,28-31"),
        ("exclusive", 2, "0,17-18,3,19", "18"),
        # Two caches for three GPUs: in turn.
        ("core-complex", 1, EVERYTHING, "0-1,16-17"),
        ("core-complex", 2, EVERYTHING, "2-3,18-19"),
        ("core-complex", 4, EVERYTHING, "0-1,16-17"),
        # The cache with more usable CPUs comes first.
        ("core-complex", 1, "0,2-3", "2-3"),
        ("core-complex", 2, "0,2-3", "0"),
    ],
)
def test_cpus_of_a_worker(tmp_path: Path, mode: str, gpu: int, allowed: str, expected: str) -> None:
    """Two sockets with two nodes each, hyperthreads, and two caches in a node."""
    BIG.write(tmp_path)

    assert bind(BIG, tmp_path, mode, gpu, cpus(allowed)) == cpus(expected)


@pytest.mark.parametrize("mode", [binding.value for binding in Binding])
def test_machine_without_numa(tmp_path: Path, mode: str) -> None:
    """On a machine with one node, the kernel reports node -1 for a GPU; that is node 0."""
    machine = Machine(1, 1, 1, 2, 1, gpu_nodes=(-1,))
    machine.write(tmp_path)

    assert bind(machine, tmp_path, mode, 0) == {0, 1}


def test_nodes_without_cpus_are_passed_over(tmp_path: Path) -> None:
    """A node with only memory and an offline node belong to no socket."""
    machine = Machine(1, 2, 1, 2, 1, gpu_nodes=(1,), possible="0-3")
    machine.write(tmp_path)
    put(tmp_path / "devices/system/node/node2/cpulist", "")

    assert bind(machine, tmp_path, "socket", 0) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("mode", "gpu", "allowed", "words"),
    [
        ("node", 5, EVERYTHING, "worker 5 has no GPU: torch sees 5"),
        ("node", 0, "0-11", "may use no CPU of NUMA node 3, where GPU 0 is"),
        ("exclusive", 1, "0,16,1", "3 GPUs share a NUMA node with 2 cores"),
    ],
)
def test_workers_without_cpus(
    tmp_path: Path, mode: str, gpu: int, allowed: str, words: str
) -> None:
    """The error names what the machine lacks."""
    BIG.write(tmp_path)

    with pytest.raises(CannotBind, match=words):
        bind(BIG, tmp_path, mode, gpu, cpus(allowed))


@pytest.mark.parametrize(
    ("mode", "missing"),
    [
        ("node", "bus/pci/devices/0000:10:00.0"),
        ("node", "devices/system/node"),
        ("socket", "devices/system/cpu/cpu3/topology"),
        ("exclusive", "devices/system/cpu/cpu3/topology"),
        ("core-complex", "devices/system/cpu/cpu3/cache"),
    ],
)
def test_missing_file_is_named(tmp_path: Path, mode: str, missing: str) -> None:
    """A missing file is an error of one line that names it, unless the binding does not need it."""
    BIG.write(tmp_path)
    shutil.rmtree(tmp_path / missing)

    with pytest.raises(TopologyUnknown, match=str(tmp_path / missing)):
        bind(BIG, tmp_path, mode, 0)
    if "cpu3" in missing:
        assert bind(BIG, tmp_path, "node", 0) == cpus("12-15,28-31")


def test_nonsense_of_the_kernel_is_named(tmp_path: Path) -> None:
    """A file without a number is quoted in the error."""
    BIG.write(tmp_path)
    put(tmp_path / "bus/pci/devices/0000:12:00.0/numa_node", "soon")

    with pytest.raises(TopologyUnknown, match=r"0000:12:00.0/numa_node holds 'soon', not a number"):
        bind(BIG, tmp_path, "node", 0)


# --- the second implementation ---

Reference = Callable[[Machine, Path, str, int, Collection[int]], frozenset[int] | None]


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> Reference:
    """torch's own function, with our folders for /sys and our GPUs for CUDA's."""
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13."):
        pytest.skip("compares with functions that only torch 2.13 has")
    from torch.numa import binding

    def ask(
        machine: Machine, folder: Path, mode: str, gpu: int, allowed: Collection[int]
    ) -> frozenset[int] | None:
        def moved(path: str) -> str:
            assert path.startswith("/sys/")
            return str(folder / path.removeprefix("/sys/"))

        def properties(index: int) -> SimpleNamespace:
            bus = int(machine.addresses[index].split(":")[1], 16)
            return SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0)

        os_there = SimpleNamespace(
            path=os.path,
            listdir=lambda path: os.listdir(moved(path)),
            sched_getaffinity=lambda _: set(allowed),
        )
        monkeypatch.setattr(binding, "os", os_there)
        opened: Any = lambda path: builtins.open(moved(path))  # noqa: E731
        monkeypatch.setattr(binding, "open", opened, raising=False)
        monkeypatch.setattr(binding, "_get_gpu_count", lambda: len(machine.gpu_nodes))
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        options = binding.NumaOptions(binding.AffinityMode(mode))
        try:
            found = binding._get_logical_cpus_to_bind_to(gpu_index=gpu, numa_options=options)
        except (RuntimeError, ValueError, ZeroDivisionError):
            return None
        return frozenset(found) or None

    return ask


@pytest.mark.parametrize("seed", range(24))
def test_as_torch_has_it(tmp_path: Path, torchs: Reference, seed: int) -> None:
    """On any machine, with any usable CPUs, every worker gets the CPUs that torch would give it.

    Where torch fails we do, except that a node of the socket without usable CPUs ends nothing.
    """
    machine = draw_machine(seed)
    machine.write(tmp_path)
    dice = random.Random(seed)
    fewer = [cpu for cpu in machine.cpus if dice.random() < 0.7] or [0]
    for allowed in (machine.cpus, fewer):
        for mode in (binding.value for binding in Binding):
            for gpu in range(len(machine.gpu_nodes)):
                expected = torchs(machine, tmp_path, mode, gpu, allowed)
                try:
                    found = bind(machine, tmp_path, mode, gpu, allowed)
                except CannotBind:
                    found = None

                case = f"{machine} {ranges(list(allowed))} {mode} GPU {gpu}"
                if expected is None and mode == "socket":
                    continue
                assert found == expected, case


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    """A binding to a node does not read the folders of CPUs."""
    BIG.write(tmp_path)
    machine = read_topology(Binding.NODE, BIG.cpus, BIG.addresses, tmp_path)

    assert (machine.sockets, machine.cores, machine.caches) == ({}, {}, {})
    assert machine.gpu_nodes == BIG.gpu_nodes
    assert isinstance(machine, Topology)
