"""How workers are started: how many, how, with which GPU, on which CPUs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rallypoint.agent.machine.numa import Binding, compute_cpus
from rallypoint.agent.machine.topology import read_topology
from support.processes.commands import NODE_AGENT
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, World

TORCH = """
class Backend:
    def __init__(self, count): self.count = count
    def is_available(self): return self.count > 0
    def device_count(self): return self.count

class Current:
    type = "cuda"

class _C:
    _get_privateuse1_backend_name = staticmethod(lambda: "tpu")

class Properties:
    def __init__(self, index):
        domain, bus, rest = {address!r}.split(":")
        self.pci_domain_id, self.pci_bus_id = int(domain, 16), int(bus, 16)
        self.pci_device_id = int(rest.partition(".")[0], 16)

cuda, xpu, tpu, accelerator = Backend({gpus}), Backend(0), Backend(3), Backend({gpus})
cuda.get_device_properties = Properties
accelerator.current_accelerator = Current
"""
ON_ONE_CPU = (
    sys.executable,
    "-c",
    "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
    "os.execv(sys.argv[1], sys.argv[1:])",
)


def with_torch(world: World, gpus: int, address: str = "0000:00:00.0") -> dict[str, str]:
    """Return variables that make a fake torch with so many GPUs importable."""
    folder = world.folder / "site"
    folder.mkdir()
    (folder / "torch.py").write_text(TORCH.format(gpus=gpus, address=address))
    return {"PYTHONPATH": str(folder)}


def end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.tell("exit", "0")


# --- how many ---


def test_workers_by_cpus(world: World) -> None:
    """`cpu` starts a worker for each usable CPU, without a probe."""
    env = {"PYTHON_EXEC": sys.executable, "PYTHONPATH": "/dev/null"}
    agent = world.agent("a", "--nproc-per-node=cpu", prefix=ON_ONE_CPU, env=env)
    workers = world.mailbox.workers(1)
    end(workers)

    assert agent.wait() == 0
    (event,) = agent.events("workers_counted")
    assert (event["asked"], event["workers"], event["of"]) == ("cpu", 1, "cpu")


@pytest.mark.parametrize(
    ("asked", "number", "of"), [("auto", 2, "cuda"), ("gpu", 2, "cuda"), ("tpu", 3, "tpu")]
)
def test_workers_by_devices(world: World, asked: str, number: int, of: str) -> None:
    """One worker for each device that torch sees; a log line reports the number."""
    agent = world.agent("a", f"--nproc-per-node={asked}", env=with_torch(world, gpus=2))
    workers = world.mailbox.workers(number)
    end(workers)

    assert agent.wait() == 0
    assert {worker.env["LOCAL_WORLD_SIZE"] for worker in workers} == {str(number)}
    (event,) = agent.events("workers_counted")
    assert (event["asked"], event["workers"], event["of"]) == (asked, number, of)


@pytest.mark.long  # imports torch twice; the scenario `workers_auto` stays with the other tests
def test_workers_by_real_torch(world: World) -> None:
    """With the installed torch, `auto` means the same as under torchrun."""
    from torch.distributed.run import determine_local_world_size

    expected = determine_local_world_size("auto")
    agent = world.agent("a", "--nproc-per-node=auto")
    end(world.mailbox.workers(expected))

    assert agent.wait() == 0
    assert agent.events("workers_counted")[0]["workers"] == expected


# --- by which way ---


def test_run_path(world: World) -> None:
    """A script runs as the main module with its own arguments; its exception is reported."""
    arguments = ("--nnodes", "7", "shard-${local_rank}.bin", "")
    agent = world.agent("a", "--run-path", nproc=2, script=(OBEDIENT, *arguments))
    workers = world.mailbox.workers(2)
    for rank, worker in enumerate(workers):
        assert worker.argv == ("--nnodes", "7", f"shard-{rank}.bin", "")
    workers[1].tell("raise", "the reason")

    assert agent.wait() == 1
    said = "\n".join(agent.said())
    assert "RuntimeError: the reason" in said
    assert f'File "{OBEDIENT}", line' in said
    assert "runpy" not in said and "run_path.py" not in said


@pytest.mark.parametrize(("method", "lines"), [("spawn", 0), ("fork", 1)])
def test_start_method(world: World, method: str, lines: int) -> None:
    """--start-method has no effect on a command line; the log says so if it is set."""
    agent = world.agent("a", f"--start-method={method}")
    end(world.mailbox.workers(1))

    assert agent.wait() == 0
    assert len(agent.events("start_method_ignored")) == lines


# --- with which GPU ---


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0", "1", "2"]), ("7, 5 ,GPU-3,1", ["7", "5", "GPU-3"])],
)
def test_virtual_local_rank(world: World, visible: str | None, expected: list[str]) -> None:
    """Every worker sees one GPU, as number 0; a variable of ours has its real local rank."""
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    script = (OBEDIENT, "${local_rank}")
    agent = world.agent("a", "--virtual-local-rank", nproc=3, script=script, env=env)
    workers = world.mailbox.workers(3)
    end(workers)

    assert agent.wait() == 0
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in workers] == expected
    assert [worker.env["LOCAL_RANK"] for worker in workers] == ["0"] * 3
    assert [worker.env["RALLYPOINT_LOCAL_RANK"] for worker in workers] == ["0", "1", "2"]
    assert [worker.argv for worker in workers] == [("0",), ("1",), ("2",)]
    assert [worker.env["RANK"] for worker in workers] == ["0", "1", "2"]


# --- on which CPUs ---


def real_pci_address() -> str:
    """Return a PCI device of this machine whose NUMA node the kernel reports."""
    files = sorted(Path("/sys/bus/pci/devices").glob("*.0/numa_node"))
    if not files:
        pytest.skip("this machine has no PCI device")
    return files[0].parent.name


@pytest.mark.parametrize("mode", ["node", "socket", "exclusive", "core-complex"])
def test_numa_binding(world: World, mode: str) -> None:
    """Workers are bound to the CPUs of their GPU before they start; the agent is not bound."""
    address = real_pci_address()
    allowed = os.sched_getaffinity(0)
    machine = read_topology(Binding(mode), allowed, [address] * 2)
    expected = [compute_cpus(Binding(mode), machine, gpu) for gpu in (0, 1)]
    env = with_torch(world, gpus=2, address=address)
    agent = world.agent("a", f"--numa-binding={mode}", nproc=2, env=env)
    workers = world.mailbox.workers(2)

    assert [os.sched_getaffinity(worker.pid) for worker in workers] == expected
    assert os.sched_getaffinity(agent.pid) == os.sched_getaffinity(workers[0].parent) == allowed
    end(workers)
    assert agent.wait() == 0


# --- what cannot be ---


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        ("--nproc-per-node=gpu", {}, "--nproc-per-node=gpu: CUDA is not available: give a number"),
        ("--nproc-per-node=xpu", {}, "--nproc-per-node=xpu: XPU is not available: give a number"),
        ("--nproc-per-node=tpus", {}, "give a number, auto, cpu, gpu, xpu or tpu"),
        ("", {"PYTHON_EXEC": "/no/python"}, "PYTHON_EXEC=/no/python: no such program"),
        ("--numa-binding=node", {}, "--numa-binding: worker 0 has no GPU: torch sees 0"),
        (
            "--virtual-local-rank --nproc-per-node=3",
            {"CUDA_VISIBLE_DEVICES": "4,5"},
            "--virtual-local-rank: CUDA_VISIBLE_DEVICES=4,5 has fewer than 3 devices",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    world: World, flags: str, env: dict[str, str], words: str
) -> None:
    """Exit code 2 and one line with what is missing, before anything is started."""
    argv = [NODE_AGENT, "--standalone", *flags.split(), OBEDIENT]
    agent = world.start("agent", argv, {**with_torch(world, gpus=0), **env})

    assert agent.wait() == 2
    agent.drain()
    (line,) = agent.stderr().splitlines()
    assert line.startswith("node-agent: error: ")
    assert words in line
    assert world.mailbox.started() == []
