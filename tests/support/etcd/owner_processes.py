"""Owners in processes, on one host or several, and what must be true of what they did."""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.journal.etcd.layout import decode_head, head_key
from rallypoint.server.journal.etcd.reading import read_batches
from support.etcd import owner_process
from support.etcd.cluster import HERE, Cluster
from support.etcd.owners import SHARDS
from support.machines.netns import Host
from support.processes.commands import Command


class Processes:
    """Owners as processes, on one store."""

    def __init__(self, cluster: Cluster, prefix: str, folder: Path, ttl_s: int = 4) -> None:
        hosts = ",".join(cluster.endpoints)
        self._arguments = [f"etcd://{hosts}{prefix}"]
        self._rest = [str(SHARDS), str(ttl_s)]
        self._folder = folder
        self.all: dict[str, Command] = {}

    def start(self, name: str, host: Host = HERE) -> Command:
        path = os.pathsep.join(one for one in sys.path if one)
        program = [*host.prefix(), sys.executable, owner_process.__file__]
        argv = [*program, *self._arguments, name, *self._rest]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
        self.all[name] = Command(name, argv, env, self._folder)
        return self.all[name]

    def end(self) -> dict[str, Any]:
        """Let all leave; return what each has done."""
        for command in self.all.values():
            command.signal(signal.SIGTERM)
        assert [0] * len(self.all) == [command.wait() for command in self.all.values()]
        return {
            name: json.loads(command.stdout().splitlines()[-1])
            for name, command in self.all.items()
        }


def check_never_two_are_sure(done: dict[str, Any]) -> None:
    """The times at which processes were sure of a shard do not overlap."""
    for shard in range(SHARDS):
        spans = sorted(
            (begin_s, end_s, name)
            for name, one in done.items()
            for begin_s, end_s, _ in one["sure"].get(str(shard), [])
        )
        assert spans
        for (_, end_s, name), (begin_s, _, other) in pairwise(spans):
            assert end_s <= begin_s, f"{name} and {other} were sure of shard {shard}"


async def check_journals(client: EtcdClient, prefix: str, done: dict[str, Any]) -> None:
    """Every batch that was stored is there, and none of an owner after one of its successor."""
    for shard in range(SHARDS):
        found = await client.range(head_key(prefix, shard))
        head = decode_head(found.found[0].value, shard)
        payloads = await read_batches(client, prefix, shard, head, found.revision)
        batches = [json.loads(payload) for payload in payloads]
        revisions = [batch["revision"] for batch in batches]
        assert revisions == sorted(revisions), f"a deposed owner has written to shard {shard}"
        for one in done.values():
            for key, stored in one["stored"].items():
                if key.split()[0] == str(shard):
                    count = revisions.count(int(key.split()[1]))
                    assert count in (stored, stored + 1), (
                        f"{key}: {count} batches, {stored} were stored"
                    )
