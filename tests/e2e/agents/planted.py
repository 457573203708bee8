"""Runs `node-agent` with a planted bug: `planted.py PLACE node-agent ARGUMENT…`."""

from __future__ import annotations

import asyncio
import errno
import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

from rallypoint.agent import agent, life
from rallypoint.agent.core import inputs
from rallypoint.agent.core.step import step
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.machine.ports import PortReserver
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.output.streams import Pump
from rallypoint.agent.round import own_folder
from rallypoint.agent.round.exits import ExitReports
from rallypoint.agent.round.oom import OomWatch
from rallypoint.agent.round.supervisor import Supervisor
from rallypoint.agent.round.watchdog import Watchdog


def plant(owner: Any, name: str, value: Any) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, value)


def fail(*_: object, **__: object) -> Any:
    raise RuntimeError("planted")


async def fail_later(*_: object, **__: object) -> None:
    fail()


async def hang(*_: object) -> None:
    await asyncio.Event().wait()


def fail_on(kind: type[inputs.Input]) -> None:
    """Let the core raise at the first input of this kind."""
    raised: list[inputs.Input] = []

    def planted(state: Any, input: inputs.Input, now_ms: int) -> Any:
        if isinstance(input, kind) and not raised:
            raised.append(input)
            fail()
        return step(state, input, now_ms)

    plant(agent, "step", planted)


def fail_from(kind: type[inputs.Input]) -> None:
    """Let the core raise at the first input of this kind, and at every one from then on."""
    is_broken = False

    def planted(state: Any, input: inputs.Input, now_ms: int) -> Any:
        nonlocal is_broken
        is_broken = is_broken or isinstance(input, kind)
        return fail() if is_broken else step(state, input, now_ms)

    plant(agent, "step", planted)


def fail_in_timer() -> None:
    """Let a timer of the watchdog raise."""

    def started(watchdog: Watchdog, *_: object) -> None:
        asyncio.get_running_loop().call_later(0.01, watchdog._expire)

    plant(Watchdog, "started", started)
    plant(Watchdog, "_read", fail)


def fail_when_closing() -> None:
    """Let the core raise, and then the first part that closes; the second one hangs."""
    fail_on(inputs.WorkerStarted)
    plant(ExitReports, "close", fail)
    plant(WorkerOutputs, "finish", hang)
    plant(life, "CLOSE_S_MAX", 1.0)


def lack_ports(failures: int) -> None:
    """Let no port be reserved so many times, after the first one."""
    real, calls = PortReserver.reserve, 0

    def reserve(ports: PortReserver) -> int:
        nonlocal calls
        calls += 1
        if 1 < calls <= 1 + failures:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(ports)

    plant(PortReserver, "reserve", reserve)


def slow_files() -> None:
    """Let every operation below $E2E_FROZEN/logs block while $E2E_FROZEN/frozen exists."""
    folder = os.environ["E2E_FROZEN"]
    flag, gate, logs = (os.path.join(folder, name) for name in ("frozen", "gate", "logs"))
    real_stat, real_open = os.stat, os.open

    def is_frozen() -> bool:
        try:
            return bool(real_stat(flag))
        except FileNotFoundError:
            return False

    def slow(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
            if text.startswith(logs) and is_frozen():
                os.write(2, f"blocked in {real.__name__}\n".encode())
                os.close(real_open(gate, os.O_RDONLY))  # until there is a writer
            return real(path, *args, **options)

        return call

    for name in ("open", "mkdir", "stat", "lstat", "scandir", "listdir", "rmdir", "unlink"):
        plant(os, name, slow(getattr(os, name)))


PLACES: dict[str, Callable[[], None]] = {
    "core": lambda: fail_on(inputs.WorkerStarted),
    "core for good": lambda: fail_from(inputs.WorkerStarted),
    "signal": lambda: fail_on(inputs.SignalReceived),
    "supervisor": lambda: plant(Supervisor, "start", fail),
    "supervisor's signal": lambda: plant(Supervisor, "signal", fail),
    "event": lambda: plant(OomWatch, "started", fail),
    "timer": fail_in_timer,
    "task": lambda: plant(ExitReports, "report", fail_later),
    "message": lambda: plant(agent, "parse_desired", fail),
    "begin": lambda: plant(life, "_begin", fail_later),
    "closing": fail_when_closing,
    "port for a moment": lambda: lack_ports(3),
    "port for good": lambda: lack_ports(1_000_000),
    "files": slow_files,
    "output": lambda: plant(Pump, "_copy", fail),
    "no tidying": lambda: plant(own_folder, "remove_dead_folders", lambda _: []),
    "helper's end": lambda: plant(WorkerHost, "close", fail_later),
}

if __name__ == "__main__":
    PLACES[sys.argv[1]]()
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
