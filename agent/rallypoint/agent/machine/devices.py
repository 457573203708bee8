"""Which devices torch sees here, asked in a process of its own, and how many workers that means.

The agent never imports torch: it would cost seconds of start-up, memory, and a CUDA context.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any

from rallypoint.agent.foreign import DEVICES

PROBE_S_MAX = 60
"""Importing torch from a cold network disk takes this long at worst."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What torch sees."""

    is_torch_missing: bool = False
    """torch is not installed for the workers; nothing else is known then."""
    accelerator: tuple[str, int] | None = None
    """Type and count of the current accelerator."""
    gpus: int | None = None
    """CUDA devices; None: CUDA is not available."""
    xpus: int | None = None
    """The same for XPU."""
    custom: tuple[str, int | None] = ("privateuseone", None)
    """Name of the backend that an extension brought, and its devices."""
    addresses: tuple[str, ...] = ()
    """PCI address of each CUDA device, if asked for: 0000:dc:00.0."""


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """How many workers this node has, and why."""

    number: int
    """1 or more."""
    of: str = ""
    """What was counted: cpu, cuda, …; empty: the number was given."""
    is_torch_missing: bool = False
    """Nothing but CPUs could be counted."""


class DevicesUnknown(Exception):
    """What was asked for is not there, or cannot be found out; the text is one line."""


def probe_devices(python: str, *, with_addresses: bool) -> Devices:
    """Ask the workers' interpreter; takes as long as importing torch does.

    Args:
        python: a path, or a name on PATH.
        with_addresses: ask for the PCI addresses too, which makes CUDA start.

    Raises:
        DevicesUnknown: it did not answer, or not in time.
    """
    words = [python, DEVICES, str(os.getpid()), *(["pci"] if with_addresses else [])]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S_MAX
        )
    except OSError as error:
        raise DevicesUnknown(f"cannot run {python}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        text = f"{python} did not say in {PROBE_S_MAX} s which devices torch sees"
        raise DevicesUnknown(text) from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {done.returncode}"
        raise DevicesUnknown(f"{python} cannot say which devices torch sees: {why}")
    return _parse(json.loads(done.stdout))


def _parse(answer: dict[str, Any]) -> Devices:
    if answer["missing"]:
        return Devices(is_torch_missing=True)
    name, count = answer["custom"]
    return Devices(
        accelerator=tuple(answer["auto"]) if answer["auto"] else None,
        gpus=answer["gpu"],
        xpus=answer["xpu"],
        custom=(name, count),
        addresses=tuple(answer.get("pci", ())),
    )


def count_workers(asked: int | str, devices: Devices, cpus: int) -> WorkerCount:
    """Return how many workers `asked` means.

    Args:
        asked: a number, auto, cpu, gpu, xpu, or the name of a privateuse1 backend.
        devices: what torch sees; not looked at for a number and cpu.
        cpus: how many CPUs this process may use, 1 or more.

    Raises:
        DevicesUnknown: there are none of these, or nobody knows the name.
    """
    if isinstance(asked, int):
        return WorkerCount(asked)
    if asked == "cpu":
        return WorkerCount(cpus, "cpu")
    if asked == "auto":
        kind, number = devices.accelerator or ("cpu", cpus)
        return WorkerCount(number, kind, devices.is_torch_missing)
    if devices.is_torch_missing:
        raise DevicesUnknown(
            "torch is not installed where the workers run: give a number, or PYTHON_EXEC"
        )
    name, custom = devices.custom
    known = {name: (name, custom), "xpu": ("XPU", devices.xpus), "gpu": ("CUDA", devices.gpus)}
    if asked not in known:
        raise DevicesUnknown(f"give a number, auto, cpu, gpu, xpu or {name}")
    title, found = known[asked]
    if not found:
        raise DevicesUnknown(f"{title} is not available: give a number, auto or cpu")
    return WorkerCount(found, "cuda" if asked == "gpu" else asked)
