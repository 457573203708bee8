"""What an agent finds on its machine: addresses, ports, devices, CPUs."""

from __future__ import annotations

import builtins
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.agent.in_worker import DEVICES
from rallypoint.agent.machine import address as module
from rallypoint.agent.machine.address import find_local_address, find_loopback, is_of_this_host
from rallypoint.agent.machine.devices import (
    Devices,
    DevicesUnknown,
    WorkerCount,
    count_workers,
    probe_devices,
)
from rallypoint.agent.machine.interfaces import find_addresses
from rallypoint.agent.machine.numa import Binding, CannotBind, Topology, compute_cpus
from rallypoint.agent.machine.ports import PORTS_KEPT, PortReserver
from rallypoint.agent.machine.topology import TopologyUnknown, read_topology
from rallypoint.base.addresses import is_loopback
from rallypoint.base.names import LOOPBACKS
from support.processes.processes import Witness

# --- The address that an agent gives to workers on other nodes ---


@pytest.mark.parametrize("coordinator", ["127.0.0.1", "no-such-host.invalid", "x" * 64])
def test_address_is_one_of_this_host(coordinator: str) -> None:
    """Whatever the coordinator's address, workers get one that can be bound on this host."""
    with socket.socket() as bound:
        bound.bind((find_local_address(coordinator), 0))

        assert bound.getsockname()[0] == find_local_address(coordinator)


def test_interface_that_is_up_comes_before_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the coordinator is here, and there is no default route."""
    monkeypatch.setattr(module, "_PROBE_ADDRESSES", ())
    monkeypatch.setattr(module, "find_addresses", lambda: ["10.0.0.7", "10.1.0.7"])

    assert find_local_address("127.0.1.1") == "10.0.0.7"
    monkeypatch.setattr(module, "find_addresses", list)
    assert is_loopback(find_local_address("127.0.1.1"))


def test_addresses_of_interfaces_are_of_this_host(tmp_path: Path) -> None:
    """None is loopback; those of IPv6 that only one link can reach are left out."""
    found = find_addresses()

    assert [one for one in found if not is_of_this_host(one) or is_loopback(one)] == []
    assert find_addresses(tmp_path / "nowhere") == [one for one in found if ":" not in one]


@pytest.mark.parametrize(
    ("missing", "address"), [((), "127.0.0.1"), (("127.0.0.1",), "::1"), (LOOPBACKS, "127.0.0.1")]
)
def test_loopback_is_whichever_there_is(
    missing: tuple[str, ...], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any, the error will be about the usual one."""
    monkeypatch.setattr(module, "is_of_this_host", lambda one: one not in missing)

    assert find_loopback() == address


@pytest.mark.parametrize(
    ("address", "here", "loopback"),
    [
        ("127.0.0.1", True, True),
        ("127.8.9.1", True, True),
        ("localhost", True, True),
        ("192.0.2.1", False, False),
        ("no-such-host.invalid", False, False),
        ("", False, False),
        ("x" * 64, False, False),
    ],
)
def test_address_of_this_host(address: str, here: bool, loopback: bool) -> None:
    """An address is of this host if it can be bound here, by number or by name."""
    assert (is_of_this_host(address), is_loopback(address)) == (here, loopback)


# --- The port that an agent reserves for the store of rank 0 ---

HOSTS_A_STORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), 1, True, use_libuv=bool(int(sys.argv[2])))
store.set("key", "value")
print(store.get("key").decode())
"""


@pytest.fixture
def reserver() -> Iterator[PortReserver]:
    reserver = PortReserver()
    yield reserver
    reserver.close()


def test_ports_do_not_repeat(reserver: PortReserver) -> None:
    """No port is returned twice while it is reserved."""
    ports = [reserver.reserve() for _ in range(PORTS_KEPT)]

    assert len(set(ports)) == PORTS_KEPT


def test_agents_never_share_a_port() -> None:
    """A port that one agent has reserved is given to no other agent on the host."""
    reservers = [PortReserver() for _ in range(12)]
    ports = [reserver.reserve() for reserver in reservers for _ in range(PORTS_KEPT)]
    for reserver in reservers:
        reserver.close()

    assert len(set(ports)) == len(ports)


def test_other_processes_cannot_bind_a_reserved_port(reserver: PortReserver) -> None:
    """A bind without SO_REUSEADDR fails until the port is released."""
    port = reserver.reserve()
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("", port))
    reserver.close()
    with socket.socket() as heir:
        heir.bind(("", port))

        assert heir.getsockname()[1] == port


@pytest.mark.long  # imports torch
@pytest.mark.parametrize("use_libuv", [0, 1])
def test_store_of_rank_0_listens_on_a_reserved_port(reserver: PortReserver, use_libuv: int) -> None:
    """Both back ends of torch's TCPStore can listen on the port while it is reserved."""
    port = reserver.reserve()
    command = [sys.executable, "-c", HOSTS_A_STORE, str(port), str(use_libuv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "value\n"), done.stderr


def test_fixed_port_is_returned_every_time(reserver: PortReserver) -> None:
    """Every round gets the fixed port, also while connections of an earlier run linger on it."""
    port = reserver.reserve()
    reserver.close()
    with socket.create_server(("127.0.0.1", port)) as server:
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the first to close keeps the port in TIME_WAIT
            client.recv(1)
    chosen = PortReserver(port)
    ports = [chosen.reserve() for _ in range(PORTS_KEPT + 2)]
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("", port))
    chosen.close()

    assert ports == [port] * (PORTS_KEPT + 2)


def test_fixed_port_in_use_is_refused_at_once() -> None:
    """The port is refused when another program listens on it or has only bound it."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        PortReserver(server.getsockname()[1])
    with socket.socket() as holder:
        holder.bind(("", 0))
        with pytest.raises(OSError, match="in use"):
            PortReserver(holder.getsockname()[1])


# --- How many workers --nproc-per-node means, and the probe of the workers' interpreter ---

CPU_ONLY = Devices()
CUDA = Devices(accelerator=("cuda", 8), gpus=8)
XPU = Devices(accelerator=("xpu", 4), xpus=4)
CUSTOM = Devices(accelerator=("tpu", 2), custom=("tpu", 2))
BOTH = Devices(accelerator=("tpu", 2), gpus=8, custom=("tpu", 2))
NO_TORCH = Devices(is_torch_missing=True)


@pytest.mark.parametrize(
    ("asked", "devices", "expected"),
    [
        (3, NO_TORCH, WorkerCount(3)),
        ("cpu", CUDA, WorkerCount(16, "cpu")),
        ("cpu", NO_TORCH, WorkerCount(16, "cpu")),
        ("auto", CPU_ONLY, WorkerCount(16, "cpu")),
        ("auto", CUDA, WorkerCount(8, "cuda")),
        ("auto", XPU, WorkerCount(4, "xpu")),
        ("auto", BOTH, WorkerCount(2, "tpu")),
        ("auto", NO_TORCH, WorkerCount(16, "cpu", is_torch_missing=True)),
        ("gpu", CUDA, WorkerCount(8, "cuda")),
        ("gpu", BOTH, WorkerCount(8, "cuda")),
        ("xpu", XPU, WorkerCount(4, "xpu")),
        ("tpu", CUSTOM, WorkerCount(2, "tpu")),
    ],
)
def test_count(asked: int | str, devices: Devices, expected: WorkerCount) -> None:
    """A node with 16 CPUs has as many workers as torchrun would start."""
    assert count_workers(asked, devices, 16) == expected


@pytest.mark.parametrize(
    ("asked", "devices", "words"),
    [
        ("gpu", CPU_ONLY, "CUDA is not available: give a number, auto or cpu"),
        ("gpu", XPU, "CUDA is not available: give a number, auto or cpu"),
        ("xpu", CUDA, "XPU is not available: give a number, auto or cpu"),
        ("privateuseone", CPU_ONLY, "privateuseone is not available: give a number, auto or cpu"),
        ("tpu", CUDA, "give a number, auto, cpu, gpu, xpu or another device type"),
        ("gpus", CUSTOM, "give a number, auto, cpu, gpu, xpu or tpu"),
        ("gpu", NO_TORCH, "torch is not installed for the workers: give a number, or"),
    ],
)
def test_nothing_to_count(asked: str, devices: Devices, words: str) -> None:
    """Missing devices and unknown words are refused, with what to do."""
    with pytest.raises(DevicesUnknown, match=words):
        count_workers(asked, devices, 16)


# --- the question, put to torches of our own making ---

TORCH = """
import sys
print("torch greets")
assert not any(path.endswith("foreign") for path in sys.path)

class Backend:
    def __init__(self, count): self.count = count
    def is_available(self): return self.count > 0
    def device_count(self): return self.count

class Properties:
    def __init__(self, index):
        self.pci_domain_id, self.pci_bus_id, self.pci_device_id = 1, 0xa0 + index, index

class _C:
    _get_privateuse1_backend_name = staticmethod(lambda: "tpu")

cuda, xpu, tpu = Backend(2), Backend(0), Backend(3)
cuda.get_device_properties = Properties
"""
ACCELERATOR = """
class Current:
    type = "tpu"

accelerator = Backend(3)
accelerator.current_accelerator = Current
"""


def probe(monkeypatch: pytest.MonkeyPatch, folder: Path, torch: str, addresses: bool) -> Devices:
    (folder / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return probe_devices(sys.executable, with_addresses=addresses)


def test_probe_of_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All backends are counted; output of the import of torch is not taken for the answer."""
    assert probe(monkeypatch, tmp_path, TORCH + ACCELERATOR, True) == Devices(
        accelerator=("tpu", 3),
        gpus=2,
        custom=("tpu", 3),
        addresses=("0001:a0:00.0", "0001:a1:01.0"),
    )


def test_probe_of_an_old_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without torch.accelerator (before 2.6), CUDA counts first, then XPU. CUDA is not started."""
    found = probe(monkeypatch, tmp_path, TORCH + "del cuda.get_device_properties", False)

    assert found == Devices(accelerator=("cuda", 2), gpus=2, custom=("tpu", 3))


def test_probe_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing torch is an answer, not an error."""
    torch = "raise ModuleNotFoundError('No module named torch', name='torch')"

    assert probe(monkeypatch, tmp_path, torch, False) == Devices(is_torch_missing=True)


@pytest.mark.parametrize(
    "hook",
    [
        "print('environment train is active')",
        "import sys; sys.stdout.write('{\"missing\": true} no newline')",
        "import atexit; atexit.register(print, '{}')",
        "import os; os.close(1)",
        "import os; os.dup2(os.open(os.devnull, os.O_RDWR), 1)",
        "import os; os.write(1, b'\\n' * 100_000)",
    ],
)
def test_probe_of_an_interpreter_that_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hook: str
) -> None:
    """What its start, or its end, does with standard output does not matter."""
    (tmp_path / "sitecustomize.py").write_text(hook)
    silent = TORCH.replace('print("torch greets")', "")

    assert probe(monkeypatch, tmp_path, silent, False).gpus == 2


@pytest.mark.parametrize(
    "lines",
    [
        'echo environment train is active\nexec {python} "$@"',
        'sleep 60 & echo $! > "$0.pid"\nexec {python} "$@"',
        'printf "no newline"\nexec {python} "$@" < /dev/null',
    ],
)
def test_probe_by_a_wrapper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, witness: Witness, lines: str
) -> None:
    """It may print, leave a process behind, and replace standard input."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\n{lines.format(python=sys.executable)}\n")
    wrapper.chmod(0o755)
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("rallypoint.agent.machine.devices.PROBE_S_MAX", 30)
    found = probe_devices(str(wrapper), with_addresses=False)
    for file in tmp_path.glob("*.pid"):
        witness.watch(int(file.read_text()))  # ends it

    assert found.gpus == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo environment train is active; echo", "environment train is active"),
        ("echo null", "null"),
        ("echo '{}'", "{}"),
        ("echo '[1'", r"\[1"),
        ("true", "nothing"),
    ],
)
def test_text_that_is_no_answer(tmp_path: Path, line: str, words: str) -> None:
    """The error shows the first line of it."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\n{line}\n")
    wrapper.chmod(0o755)
    with pytest.raises(DevicesUnknown, match=f"printed no report of .*, but: {words}$"):
        probe_devices(str(wrapper), with_addresses=False)


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        ("raise OSError('libcudart.so.13: cannot open')", "OSError: libcudart.so.13: cannot open"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "exit code -11"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_probe_of_a_broken_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, torch: str, words: str
) -> None:
    """A torch that cannot be imported is an error, not a missing torch."""
    with pytest.raises(DevicesUnknown, match=f"cannot report the devices of torch: {words}"):
        probe(monkeypatch, tmp_path, torch, False)


def test_probe_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A probe that does not answer in time is killed."""
    monkeypatch.setattr("rallypoint.agent.machine.devices.PROBE_S_MAX", 0.5)
    pid_file = tmp_path / "pid"
    torch = (
        f"import os, signal; open({str(pid_file)!r}, 'w').write(str(os.getpid())); signal.pause()"
    )
    with pytest.raises(DevicesUnknown, match=r"did not report the devices of torch within 0.5 s"):
        probe(monkeypatch, tmp_path, torch, False)

    assert not pid_file.exists() or not Path(f"/proc/{pid_file.read_text()}").exists()


def test_probe_with_a_python_that_is_not_there() -> None:
    """A PYTHON_EXEC that cannot be run is an error."""
    with pytest.raises(DevicesUnknown, match="cannot run /no/python: No such file or directory"):
        probe_devices("/no/python", with_addresses=False)


def test_probe_of_a_parent_that_is_gone() -> None:
    """The probe ends at once if its agent died before the probe could watch it."""
    done = subprocess.run([sys.executable, DEVICES, "1"], capture_output=True, timeout=60)

    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_probe_dies_with_its_parent(tmp_path: Path, witness: Witness) -> None:
    """The probe does not outlive an agent that is killed."""
    (tmp_path / "torch.py").write_text(
        "import os, signal; os.write(2, b'%d\\n' % os.getpid()); signal.pause()"
    )
    program = (
        "import subprocess, sys, os\n"
        f"subprocess.run([sys.executable, {DEVICES!r}, str(os.getpid())])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
    ) as parent:
        assert parent.stderr is not None
        pid = int(parent.stderr.readline())
        witness.watch(pid)
        parent.kill()

        assert witness.await_deaths() == []


# --- The CPUs that a worker is bound to, on machines made of files, compared with torch ---


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
    torch = pytest.importorskip("torch", reason="compares with functions that only torch 2.13 has")
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
