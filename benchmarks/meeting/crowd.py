"""N rendezvous handlers that join at once.

    python benchmarks/meeting/crowd.py --backend c10d --run-id r --nodes 8

Each handler is in a process, as nodes are. The processes are forks of one that has imported
everything: on a cluster the imports of one node do not wait for those of another. Each makes its
handler, and when the last one is ready they all call next_rendezvous. With --threads, all handlers
are threads of one process. The result is one line of JSON: when each call had returned, in seconds.

With c10d the first process hosts the TCPStore, so no node has to serve it.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

READY_LIMIT_S = 120.0
"""Longest wait until all handlers exist."""
LEAVE_LIMIT_S = 30.0
"""Longest wait until all processes have ended, after which they are killed."""
RESULT = struct.Struct("<qII")
"""What a node writes: CLOCK_MONOTONIC in ns at its return, its rank and the number of nodes."""
OURS = ("grpc.aio", "rallypoint.torch.rendezvous.handler")
"""What our handlers import in the end."""

Result = tuple[int, int, int]
Make = Callable[[], Any]


class Crowd(Protocol):
    """Handlers that are ready to join."""

    def join(self, limit_s: float) -> list[Result] | None:
        """Let all join; return when each had, or None if the limit has passed."""

    def close(self, *, at_once: bool) -> None:
        """End all."""


class Processes:
    """Processes that each hold one handler."""

    def __init__(self, make: Make, count: int) -> None:
        self._ready, self._readied = os.pipe()
        self._gate, self._opener = os.pipe()
        self._results, self._resulting = os.pipe()
        self._end, self._ender = os.pipe()
        self._count = count
        self.pids: dict[int, int] = {}
        """Pids of the nodes, with their pidfds."""
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                self._live(make)
            self.pids[pid] = os.pidfd_open(pid)
        for end in (self._readied, self._gate, self._resulting, self._end):
            os.close(end)

    def _live(self, make: Make) -> None:
        """Be a node; does not return."""
        code = 1
        try:
            for end in (self._ready, self._opener, self._results, self._ender):
                os.close(end)  # else the others would never see the end of a pipe
            handler = make()
            os.write(self._readied, b"r")
            os.close(self._readied)
            os.read(self._gate, 1)
            info = handler.next_rendezvous()
            ended_ns = time.monotonic_ns()
            os.write(self._resulting, RESULT.pack(ended_ns, info.rank, info.world_size))
            os.close(self._resulting)
            os.read(self._end, 1)
            handler.shutdown()
            code = 0
        except BaseException:  # noqa: BLE001  # a fork ends here, whatever comes
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def join(self, limit_s: float) -> list[Result] | None:
        if len(read_all(self._ready, self._count, READY_LIMIT_S)) < self._count:
            raise RuntimeError("not every handler could be made; see above")
        began_ns = time.monotonic_ns()
        os.close(self._opener)
        found = read_all(self._results, self._count * RESULT.size, limit_s)
        if len(found) == self._count * RESULT.size:
            rows = RESULT.iter_unpack(found)
            return [(end_ns - began_ns, rank, size) for end_ns, rank, size in rows]
        if time.monotonic_ns() - began_ns < limit_s * 1e9:
            raise RuntimeError("a handler failed; see above")
        return None

    def close(self, *, at_once: bool) -> None:
        os.close(self._ender)
        deadline = time.monotonic() + (0.0 if at_once else LEAVE_LIMIT_S)
        for pid, pidfd in self.pids.items():
            if not select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pidfd)


class Threads:
    """Handlers in threads of this process, which has to end afterwards."""

    def __init__(self, make: Make, count: int) -> None:
        self._gate = threading.Event()
        self._end = threading.Event()
        self._joined = threading.Semaphore(0)
        self._results: list[Result] = []
        self._threads = [
            threading.Thread(target=self._live, args=(handler,), daemon=True)
            for handler in [make() for _ in range(count)]
        ]
        for thread in self._threads:
            thread.start()

    def _live(self, handler: Any) -> None:
        self._gate.wait()
        info = handler.next_rendezvous()
        self._results.append((time.monotonic_ns(), info.rank, info.world_size))
        self._joined.release()
        self._end.wait()
        handler.shutdown()

    def join(self, limit_s: float) -> list[Result] | None:
        began_ns = time.monotonic_ns()
        self._gate.set()
        for _ in self._threads:
            if not self._joined.acquire(timeout=max(0.0, limit_s - seconds_since(began_ns))):
                return None
        return [(end_ns - began_ns, rank, size) for end_ns, rank, size in self._results]

    def close(self, *, at_once: bool) -> None:
        self._end.set()
        deadline_s = time.monotonic() + (0.0 if at_once else LEAVE_LIMIT_S)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


def seconds_since(moment_ns: int) -> float:
    return (time.monotonic_ns() - moment_ns) / 1e9


def read_all(pipe: int, count: int, limit_s: float) -> bytes:
    """Return `count` bytes from a pipe, or fewer at its end or when the limit has passed."""
    found, deadline = b"", time.monotonic() + limit_s
    while len(found) < count:
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        more = os.read(pipe, count - len(found))
        if not more:
            break
        found += more
    return found


def run(chosen: argparse.Namespace) -> list[float] | None:
    """Return when each handler had joined, in seconds and sorted, or None if that took too long."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public
    from torch.distributed.elastic import rendezvous
    from torch.distributed.elastic.rendezvous import registry

    config: dict[str, Any] = {"join_timeout": int(chosen.limit) + 1}
    if chosen.backend == "c10d":
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            port = reserved.getsockname()[1]
        chosen.endpoint, config["is_host"] = f"127.0.0.1:{port}", False
    else:
        for name in OURS:
            import_module(name)
    parameters = rendezvous.RendezvousParameters(
        chosen.backend,
        chosen.endpoint,
        chosen.run_id,
        chosen.nodes,
        chosen.nodes,
        local_addr="127.0.0.1",
        **config,
    )

    def make() -> Any:
        return registry.get_rendezvous_handler(parameters)

    def host() -> TCPStore | None:
        if chosen.backend != "c10d":
            return None
        return TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)

    crowd: Crowd
    if chosen.threads:
        store = host()
        crowd = Threads(make, chosen.nodes)
    else:
        # The store has a thread, so it comes after the forks. Clients try until it listens.
        crowd = Processes(make, chosen.nodes)
        store = host()
    found = None
    try:
        found = crowd.join(chosen.limit)
    finally:
        crowd.close(at_once=found is None)
    del store
    if found is None:
        return None
    ranks = sorted(rank for _, rank, _ in found)
    if ranks != list(range(chosen.nodes)) or {size for *_, size in found} != {chosen.nodes}:
        raise RuntimeError(f"not one round of {chosen.nodes} nodes: {found}")
    return sorted(took_ns / 1e9 for took_ns, *_ in found)


def main() -> None:
    """Run a crowd; does not return."""
    parser = argparse.ArgumentParser(description="Join a rendezvous with N handlers.")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--endpoint", help="HOST:PORT; c10d needs none: it is hosted here")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds")
    parser.add_argument("--threads", action="store_true", help="all handlers in one process")
    print(json.dumps(run(parser.parse_args())), flush=True)
    os._exit(0)  # threads of a rendezvous that never formed would hold up the end


if __name__ == "__main__":
    main()
