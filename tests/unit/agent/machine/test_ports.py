"""The port that an agent reserves for the store of rank 0."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rallypoint.agent.machine.ports import PORTS_KEPT, PortReserver

HOSTS_A_STORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), 1, True, use_libuv=bool(int(sys.argv[2])))
store.set("key", "value")
print(store.get("key").decode())
"""


@pytest.fixture
def reserver() -> Iterator[PortReserver]:
    reserver = PortReserver()
    yield reserver
    reserver.close()


def test_ports_do_not_repeat(reserver: PortReserver) -> None:
    """No port is returned twice while it is reserved."""
    ports = [reserver.reserve() for _ in range(PORTS_KEPT)]

    assert len(set(ports)) == PORTS_KEPT


def test_agents_never_share_a_port() -> None:
    """A port that one agent has reserved is given to no other agent on the host."""
    reservers = [PortReserver() for _ in range(12)]
    ports = [reserver.reserve() for reserver in reservers for _ in range(PORTS_KEPT)]
    for reserver in reservers:
        reserver.close()

    assert len(set(ports)) == len(ports)


def test_other_processes_cannot_bind_a_reserved_port(reserver: PortReserver) -> None:
    """A bind without SO_REUSEADDR fails until the port is released."""
    port = reserver.reserve()
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("", port))
    reserver.close()
    with socket.socket() as heir:
        heir.bind(("", port))

        assert heir.getsockname()[1] == port


@pytest.mark.long  # imports torch
@pytest.mark.parametrize("use_libuv", [0, 1])
def test_store_of_rank_0_listens_on_a_reserved_port(reserver: PortReserver, use_libuv: int) -> None:
    """Both back ends of torch's TCPStore can listen on the port while it is reserved."""
    port = reserver.reserve()
    command = [sys.executable, "-c", HOSTS_A_STORE, str(port), str(use_libuv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "value\n"), done.stderr


def test_fixed_port_is_returned_every_time(reserver: PortReserver) -> None:
    """Every round gets the fixed port, also while connections of an earlier run linger on it."""
    port = reserver.reserve()
    reserver.close()
    with socket.create_server(("127.0.0.1", port)) as server:
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the first to close keeps the port in TIME_WAIT
            client.recv(1)
    chosen = PortReserver(port)
    ports = [chosen.reserve() for _ in range(PORTS_KEPT + 2)]
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("", port))
    chosen.close()

    assert ports == [port] * (PORTS_KEPT + 2)


def test_fixed_port_in_use_is_refused_at_once() -> None:
    """The port is refused when another program listens on it or has only bound it."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        PortReserver(server.getsockname()[1])
    with socket.socket() as holder:
        holder.bind(("", 0))
        with pytest.raises(OSError, match="in use"):
            PortReserver(holder.getsockname()[1])
