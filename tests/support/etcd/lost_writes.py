"""Shows whether etcd itself loses writes that it has confirmed, without any code of ours.

Members of a cluster of three are killed and started again while others write. Each write makes a
new key in one transaction, is sent once, and counts once it was answered. At the end each member is
asked what it has. etcd 3.5.0 to 3.5.2 may save a transaction's number before the transaction: a
member that is killed in between never makes that change. Run it with the path of another etcd to
see that it is whole there:

    python tests/support/etcd/lost_writes.py --kills 60 --seed 3 --program /usr/bin/etcd
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random

import grpc
from aetcd import rpc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.etcd import cluster as clusters
from support.etcd.cluster import Cluster, Member

WRITERS = 16
GUARDS = 20
"""Conditions of a transaction: they take the time in which a kill does harm."""
LIMIT_S = 5.0
START_LIMIT_S = 300.0
"""A member reads its whole log when it starts, beside 16 writers."""
SETTLE_S = 3.0
FLAGS = ("--backend-batch-interval=5ms",)
PAGE = 5_000


class Writer(threading.Thread):
    """Makes keys at all members until it is stopped."""

    def __init__(self, number: int, endpoints: tuple[str, ...], seed: int) -> None:
        super().__init__(daemon=True)
        self.confirmed: list[bytes] = []
        self.ends = threading.Event()
        self._number = number
        self._random = Random(f"{seed} {number}")
        self._stubs = [rpc.KVStub(grpc.insecure_channel(endpoint)) for endpoint in endpoints]

    def run(self) -> None:
        """Write."""
        count = 0
        while not self.ends.is_set():
            key = f"{self._number}/{count}".encode()
            count += 1
            try:
                done = self._random.choice(self._stubs).Txn(_make(key), timeout=LIMIT_S)
            except grpc.RpcError:
                self.ends.wait(0.01)  # whether it was written is not known
            else:
                assert done.succeeded
                self.confirmed.append(key)


def _make(key: bytes) -> rpc.TxnRequest:
    names = (key, *(b"none%d" % number for number in range(GUARDS)))
    compare = [
        rpc.Compare(key=name, target=rpc.Compare.VERSION, result=rpc.Compare.EQUAL, version=0)
        for name in names
    ]
    put = rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=b"x" * 300))
    return rpc.TxnRequest(compare=compare, success=[put])


def _list(member: Member) -> set[bytes]:
    """Return all keys that a member has itself."""
    stub = rpc.KVStub(grpc.insecure_channel(member.endpoint))
    found: set[bytes] = set()
    key = b"\0"
    while True:
        request = rpc.RangeRequest(
            key=key, range_end=b"\0", serializable=True, keys_only=True, limit=PAGE
        )
        page = stub.Range(request, timeout=LIMIT_S)
        found |= {one.key for one in page.kvs}
        if not page.more:
            return found
        key = page.kvs[-1].key + b"\0"


def play(cluster: Cluster, kills: int, seed: int) -> int:
    """Write and kill; print what each member has lost, and return how many writes in all."""
    random = Random(seed)
    writers = [Writer(number, cluster.endpoints, seed) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for _ in range(kills):
        time.sleep(random.uniform(0.2, 0.6))
        member = random.choice(cluster.members)
        member.kill()
        cluster.restart(member)
    for writer in writers:
        writer.ends.set()
    for writer in writers:
        writer.join()
    time.sleep(SETTLE_S)
    confirmed = {key for writer in writers for key in writer.confirmed}
    print(f"{kills} kills, {len(confirmed)} confirmed writes")
    lost = {member.name: sorted(confirmed - _list(member)) for member in cluster.members}
    for name, keys in lost.items():
        print(f"{name} has lost {len(keys)}: {b' '.join(keys[:8]).decode()}")
    return sum(map(len, lost.values()))


def main() -> int:
    """Return 1 when a confirmed write is missing at a member."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--program", default=clusters.find_program(), help="the etcd to try")
    arguments = parser.parse_args()
    clusters.READY_LIMIT_S = START_LIMIT_S
    clusters.find_program = lambda name="etcd": arguments.program
    with (
        tempfile.TemporaryDirectory() as folder,
        clusters.running(Path(folder), 3, *FLAGS) as cluster,
    ):
        return 1 if play(cluster, arguments.kills, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
