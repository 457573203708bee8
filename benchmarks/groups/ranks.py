"""Ranks that make process groups on command: python ranks.py COUNT < commands > times.

Each command is a line of JSON: `{"store": "tcp" | "agent" | "rallypoint", "name": …}`; each answer
is a line with the seconds from the command until the last rank had its process group. The ranks are
forked after torch is loaded, and are the same for all commands: only the making is measured.

* `tcp`: rank 0 hosts a TCPStore, as with `init_method="tcp://…"`.
* `agent`: this process hosts it beforehand, as torchrun's agents do for their workers.
* `rallypoint`: a `rallypoint.torch.Store` of the variables in the environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch.distributed

from rallypoint.agent.machine.ports import PortReserver

DIST: Any = torch.distributed
"""It has more names than its annotations."""
LIMIT = timedelta(seconds=120)
HOST = "127.0.0.1"


def find_port() -> int:
    """Return a port that was free a moment ago."""
    ports = PortReserver()
    port = ports.reserve()
    ports.close()
    return port


def make_group(rank: int, count: int, command: dict[str, Any]) -> Any:
    """Return the store over which this rank has joined its process group."""
    match command["store"]:
        case "tcp" | "agent":
            hosts = command["store"] == "tcp" and rank == 0
            port = command["port"]
            store = DIST.TCPStore(HOST, port, count, hosts, LIMIT, wait_for_workers=False)
            store = DIST.PrefixStore(command["name"], store)
        case _:
            from rallypoint.torch import Store

            store = Store.from_environment(prefix=f"{command['name']}/", timeout=LIMIT)
    DIST.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=LIMIT)
    return store


def obey(rank: int, count: int, commands: Connection) -> None:
    """Make a process group for each command, until there is none."""
    while (command := commands.recv()) is not None:
        store = make_group(rank, count, command)
        commands.send(time.monotonic())
        commands.recv()  # all have joined
        DIST.destroy_process_group()
        if command["store"] == "rallypoint":
            store.close()
        del store
        commands.send("left")


def fork(rank: int, count: int) -> Connection:
    """Start a rank; return the way to it."""
    ours, theirs = Pipe()
    if os.fork() == 0:
        ours.close()
        try:
            obey(rank, count, theirs)
        except Exception as error:  # noqa: BLE001  # the end of the process
            print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    theirs.close()
    return ours


def measure(ranks: list[Connection], command: dict[str, Any]) -> float:
    """Return how long the ranks took to make a process group, in s."""
    hosted = None
    if command["store"] == "agent":
        hosted = DIST.TCPStore(HOST, 0, None, True, LIMIT, wait_for_workers=False)
        command["port"] = hosted.port
    elif command["store"] == "tcp":
        command["port"] = find_port()
    began_s = time.monotonic()
    for rank in ranks:
        rank.send(command)
    ended_s = max(rank.recv() for rank in ranks)
    for rank in ranks:
        rank.send("leave")
    for rank in ranks:
        rank.recv()
    del hosted
    return float(ended_s - began_s)


def main() -> None:
    count = int(sys.argv[1])
    ranks = [fork(rank, count) for rank in range(count)]
    for line in sys.stdin:
        print(json.dumps(measure(ranks, json.loads(line))), flush=True)
    for rank in ranks:
        rank.send(None)
    for _ in ranks:
        os.wait()


if __name__ == "__main__":
    main()
