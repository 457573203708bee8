"""The devices that torch sees here, and the number of workers that follows.

The agent never imports torch, which would cost seconds, memory and a CUDA context. A subprocess of
the workers' interpreter does.
"""

from __future__ import annotations

import json
import os
import subprocess
from tempfile import TemporaryFile
from typing import IO, Any

from msgspec import Struct

from rallypoint.agent.in_worker import DEVICES

PROBE_S_MAX = 60
"""The longest import of torch, from a cold network disk."""
PRINTED_CHARS = 80
"""The line that an error shows of what was printed in place of an answer."""
UNNAMED = "privateuseone"
"""torch's name for a device type that no extension has registered."""


class Devices(Struct, frozen=True):
    """The devices that torch sees."""

    is_torch_missing: bool = False
    """torch is not installed for the workers; then nothing else is known."""
    accelerator: tuple[str, int] | None = None
    """Type and count of the current accelerator."""
    gpus: int | None = None
    """CUDA devices; None: CUDA is not available."""
    xpus: int | None = None
    """The same for XPU."""
    custom: tuple[str, int | None] = (UNNAMED, None)
    """Name of the backend that an extension registered, and its devices."""
    addresses: tuple[str, ...] = ()
    """PCI address of each CUDA device, such as 0000:dc:00.0, if requested."""


class WorkerCount(Struct, frozen=True):
    """How many workers this node has, and why."""

    number: int
    """1 or more."""
    of: str = ""
    """The kind that was counted: cpu, cuda, …; empty: the number was given."""
    is_torch_missing: bool = False
    """torch is not installed, so only CPUs could be counted."""


class DevicesUnknown(Exception):
    """The requested devices do not exist or cannot be counted; the text is one line."""


def probe_devices(python: str, *, with_addresses: bool) -> Devices:
    """Run the workers' interpreter to find the devices; takes as long as importing torch.

    Args:
        python: a path, or a name on PATH.
        with_addresses: get the PCI addresses too, which makes CUDA start.

    Raises:
        DevicesUnknown: it failed, or did not answer in time.
    """
    words = [python, DEVICES, str(os.getpid()), *(["pci"] if with_addresses else [])]
    try:
        # Files, not pipes: what a wrapper leaves behind may hold them open.
        with TemporaryFile() as answer, TemporaryFile() as output:
            code = subprocess.run(
                words, stdin=answer, stdout=output, stderr=output, timeout=PROBE_S_MAX
            ).returncode
            found, lines = _read(answer), _read(output).strip().splitlines()
    except OSError as error:
        raise DevicesUnknown(f"cannot run {python}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        text = f"{python} did not report the devices of torch within {PROBE_S_MAX} s"
        raise DevicesUnknown(text) from error
    if code != 0 and not found:
        why = lines[-1] if lines else f"exit code {code}"
        raise DevicesUnknown(f"{python} cannot report the devices of torch: {why}")
    try:
        return _parse(json.loads(found or lines[-1]))
    except (LookupError, TypeError, ValueError) as error:
        printed = lines[0] if lines else "nothing"
        text = f"{python} printed no report of the devices of torch, but: {printed[:PRINTED_CHARS]}"
        raise DevicesUnknown(text) from error


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


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
    """Return the number of workers for `asked`.

    Args:
        asked: a number, auto, cpu, gpu, xpu, or the name of a privateuse1 backend.
        devices: those of torch; not used for a number and for cpu.
        cpus: number of CPUs that this process may use, 1 or more.

    Raises:
        DevicesUnknown: there are no such devices, or the name is unknown.
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
            "torch is not installed for the workers: give a number, or set PYTHON_EXEC"
        )
    name, custom = devices.custom
    known = {name: (name, custom), "xpu": ("XPU", devices.xpus), "gpu": ("CUDA", devices.gpus)}
    if asked not in known:
        other = "another device type" if name == UNNAMED else name
        raise DevicesUnknown(f"give a number, auto, cpu, gpu, xpu or {other}")
    title, count = known[asked]
    if not count:
        raise DevicesUnknown(f"{title} is not available: give a number, auto or cpu")
    return WorkerCount(count, "cuda" if asked == "gpu" else asked)
