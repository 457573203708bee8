"""How many workers --nproc-per-node means, and the probe of the workers' interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.in_worker import DEVICES
from rallypoint.agent.machine.devices import (
    Devices,
    DevicesUnknown,
    WorkerCount,
    count_workers,
    probe_devices,
)
from support.processes.processes import Witness

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


@pytest.fixture
def witness() -> Iterator[Witness]:
    witness = Witness()
    yield witness
    witness.close()


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
