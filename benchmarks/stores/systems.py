"""The stores that are compared, each as a process of this machine."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.trial import WAIT_LIMIT_S, MeasurementFailed, Trial
from stores.clients import Kind, Target

JOB_ID = "key-value"
TOKEN_BYTES_MAX = 4096
POLL_S = 0.05
WORKER = """\
import os, signal, sys
line = os.open(sys.argv[1], os.O_WRONLY)
os.write(line, os.environ["RALLYPOINT_WORKER_TOKEN"].encode())
signal.pause()
"""
"""A worker that passes its token on."""
TCPSTORE = """\
import signal
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(f"listening on 127.0.0.1:{store.port}", flush=True)
signal.pause()
"""
SERVES = re.compile(r'"serving client traffic[^"]*","address":"(127\.0\.0\.1:\d+)"')
"""What etcd logs when it is ready."""


@dataclass(frozen=True, slots=True)
class Server:
    """A store that runs."""

    name: str
    target: Target
    pid: int


def start_coordinator(trial: Trial) -> Server:
    """Start a coordinator, whose journal is in memory, and a job of one real agent."""
    command = ["coordinator", "--host=127.0.0.1", "--port=0", "--log-level=error"]
    process = trial.start(command, stdout=subprocess.PIPE)
    return Server("Rallypoint", start_job(trial, trial.read_address(process)), process.popen.pid)


def start_job(trial: Trial, address: str) -> Target:
    """Start a job of one agent with one worker; return what clients need that act as the worker."""
    pipe = trial.folder / "token"
    os.mkfifo(pipe)
    line = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # for writing too: so it has no end
    try:
        where = ["--coordinator", address, "--job-id", JOB_ID, "--local-addr", "127.0.0.1"]
        worker = ["--no-python", sys.executable, "-I", "-S", "-c", WORKER, str(pipe)]
        trial.start(["node-agent", *where, *worker])
        if not select.select([line], [], [], WAIT_LIMIT_S)[0]:
            raise MeasurementFailed("the worker did not start")
        token = os.read(line, TOKEN_BYTES_MAX).decode()
    finally:
        os.close(line)
    return Target(Kind.RALLYPOINT, address, JOB_ID, token)


def start_etcd(trial: Trial) -> Server:
    """Start an etcd of one member: it writes each change to the disk before it answers."""
    return _start_etcd(trial, "etcd")


def start_etcd_unsafe(trial: Trial) -> Server:
    """Start an etcd that leaves the writing to the kernel."""
    return _start_etcd(trial, "etcd without fsync", "--unsafe-no-fsync")


def _start_etcd(trial: Trial, name: str, *flags: str) -> Server:
    nowhere = "http://127.0.0.1:1"  # there are no other members
    command = [
        "etcd",
        f"--data-dir={trial.folder / name.replace(' ', '-')}",
        *("--listen-client-urls=http://127.0.0.1:0", f"--advertise-client-urls={nowhere}"),
        *("--listen-peer-urls=http://127.0.0.1:0", f"--initial-advertise-peer-urls={nowhere}"),
        f"--initial-cluster=default={nowhere}",
        *flags,
    ]
    process = trial.start(command)
    ends_s = time.monotonic() + WAIT_LIMIT_S
    while process.popen.poll() is None and time.monotonic() < ends_s:
        found = SERVES.search(trial.log(process).read_text())
        if found is not None:
            return Server(name, Target(Kind.ETCD, found[1]), process.popen.pid)
        time.sleep(POLL_S)
    raise MeasurementFailed("etcd is not ready")


def start_tcpstore(trial: Trial) -> Server:
    """Start a TCPStore in a process that does nothing else."""
    process = trial.start(["python", "-c", TCPSTORE], stdout=subprocess.PIPE)
    target = Target(Kind.TCPSTORE, trial.read_address(process))
    return Server("TCPStore", target, process.popen.pid)


def start_floor(trial: Trial) -> Server:
    """Start the floor."""
    script = Path(__file__).with_name("floor.py")
    process = trial.start(["python", str(script)], stdout=subprocess.PIPE)
    target = Target(Kind.RALLYPOINT, trial.read_address(process), JOB_ID)
    return Server("bare grpc.aio", target, process.popen.pid)


STARTERS: dict[str, Callable[[Trial], Server]] = {
    "rallypoint": start_coordinator,
    "etcd": start_etcd,
    "etcd-unsafe": start_etcd_unsafe,
    "tcpstore": start_tcpstore,
    "floor": start_floor,
}
"""By their names on the command line."""
