"""torchft's lighthouse, or clients of one; runs in an environment that has torchft.

    python benchmarks/meeting/quorums.py serve NODES
    python benchmarks/meeting/quorums.py join PORT FIRST COUNT

`serve` prints its port and serves a quorum of NODES replicas until its input ends. `join` prints
`ready`, then `run` for each line of its input, when all of its clients have the next quorum: one
thread each, with one client of torchft's own, in Rust. It ends with its input.

Only the extension of torchft is loaded: its Python needs torch, and the lighthouse does not.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

TICK_MS = 10
"""How often the lighthouse looks whether there is a quorum; its default is 100 ms."""
JOIN_MS = 60_000
"""How long it waits for replicas that are missing: here none is."""
LIMIT = timedelta(seconds=60)
"""Longest wait for a connection, and for a quorum."""
STACK_BYTES = 256 * 1024
"""Of a client's thread: a thousand of them have to fit."""


def load() -> Any:
    """Return torchft's extension."""
    package = importlib.util.find_spec("torchft")
    assert package is not None and package.origin is not None, "torchft is not installed here"
    (path,) = Path(package.origin).parent.glob("_torchft.*.so")
    os.environ["RUST_LOG"] = "error"  # else it writes a line for each connection
    spec = importlib.util.spec_from_file_location("torchft._torchft", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(torchft: Any, nodes: int) -> None:
    """Serve one quorum until the input ends."""
    server = torchft.LighthouseServer(
        bind="127.0.0.1:0", min_replicas=nodes, join_timeout_ms=JOIN_MS, quorum_tick_ms=TICK_MS
    )
    print(f"listening on {server.address()}", flush=True)
    sys.stdin.read()


class Clients:
    """Clients of this process, each in a thread."""

    def __init__(self, torchft: Any, port: int, first: int, count: int) -> None:
        """Start the threads; they connect when the first quorum is asked for."""
        self._torchft = torchft
        self._address = f"http://127.0.0.1:{port}"
        self._begin = threading.Barrier(count + 1)
        self._end = threading.Barrier(count + 1)
        threading.stack_size(STACK_BYTES)
        for number in range(first, first + count):
            threading.Thread(target=self._live, args=(number,), daemon=True).start()

    def _live(self, number: int) -> None:
        self._begin.wait()
        client = self._torchft.LighthouseClient(self._address, connect_timeout=LIMIT)
        name, step = f"node{number}", 0
        while True:
            client.quorum(replica_id=name, timeout=LIMIT, address=name, step=step, world_size=1)
            step += 1
            self._end.wait()
            self._begin.wait()

    def meet(self) -> None:
        """Return when all have the next quorum."""
        self._begin.wait()
        self._end.wait(LIMIT.total_seconds())


def join(torchft: Any, port: int, first: int, count: int) -> None:
    """Ask for a quorum whenever a line comes."""
    clients = Clients(torchft, port, first, count)
    print("ready", flush=True)
    for _ in sys.stdin:
        clients.meet()
        print("run", flush=True)
    os._exit(0)


def main() -> None:
    """Serve, or join."""
    role, *numbers = sys.argv[1:]
    if role == "serve":
        serve(load(), int(numbers[0]))
    else:
        port, first, count = map(int, numbers)
        join(load(), port, first, count)


if __name__ == "__main__":
    main()
