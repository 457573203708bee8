"""Tells which devices torch sees, as one line of JSON on descriptor 0.

Nothing prints there, while what starts before this program may print on standard output: a wrapper,
a `sitecustomize`. A wrapper that does not pass descriptor 0 on gets the line on standard output.

Run as `python devices.py PARENT`, where PARENT is the pid of the caller; the program dies with it.
With `pci` as a further argument, it tells the PCI addresses of the CUDA devices too, which makes
CUDA start. The fields, each null if there is nothing of the kind:

    missing     true: torch is not installed; there is no other field
    auto        [type, count] of the accelerator
    gpu, xpu    count
    custom      [name, count or null] of the privateuse1 backend
    pci         ["0000:dc:00.0", …] in the order of the devices
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def _main() -> None:
    _die_with(int(sys.argv[1]))
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file
    answer = json.dumps(_find_devices("pci" in sys.argv[2:])).encode()
    try:
        os.write(0, answer)
    except OSError:
        print(flush=True)  # ends a line that an import has begun
        os.write(1, answer + b"\n")


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _find_devices(wants_pci: bool) -> dict[str, Any]:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return {"missing": True}
    devices: dict[str, Any] = {
        "missing": False,
        "gpu": _count(torch.cuda),
        "xpu": _count(getattr(torch, "xpu", None)),
        "custom": _custom(torch),
    }
    devices["auto"] = _accelerator(torch, devices)
    if wants_pci:
        devices["pci"] = [_address(torch, index) for index in range(devices["gpu"] or 0)]
    return devices


def _count(backend: Any) -> int | None:
    if backend is None or not backend.is_available():
        return None
    return int(backend.device_count())


def _custom(torch: Any) -> list[Any]:
    name = torch._C._get_privateuse1_backend_name()
    return [name, _count(getattr(torch, name, None))]


def _accelerator(torch: Any, devices: dict[str, Any]) -> list[Any] | None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:  # before torch 2.6
        kinds = [("cuda", devices["gpu"]), ("xpu", devices["xpu"])]
        return next(([kind, count] for kind, count in kinds if count), None)
    if not accelerator.is_available():
        return None
    return [accelerator.current_accelerator().type, int(accelerator.device_count())]


def _address(torch: Any, index: int) -> str:
    device = torch.cuda.get_device_properties(index)
    return f"{device.pci_domain_id:04x}:{device.pci_bus_id:02x}:{device.pci_device_id:02x}.0"


if __name__ == "__main__":
    _main()
