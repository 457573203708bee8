"""The port that an agent reserves for the store of rank 0, and the address it gives to workers."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rallypoint.agent.address import (
    PORTS_KEPT,
    PortReserver,
    find_local_address,
    is_loopback,
    is_of_this_host,
)

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


def test_ports_do_not_come_again(reserver: PortReserver) -> None:
    """As long as they are kept, no port is offered twice."""
    ports = [reserver.reserve() for _ in range(PORTS_KEPT)]

    assert len(set(ports)) == PORTS_KEPT


def test_agents_never_share_a_port() -> None:
    """What one agent keeps, no other one on the host is given."""
    reservers = [PortReserver() for _ in range(12)]
    ports = [reserver.reserve() for reserver in reservers for _ in range(PORTS_KEPT)]
    for reserver in reservers:
        reserver.close()

    assert len(set(ports)) == len(ports)


def test_nobody_else_takes_a_reserved_port(reserver: PortReserver) -> None:
    """Who binds it without SO_REUSEADDR is refused, until it is given back."""
    port = reserver.reserve()
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("", port))
    reserver.close()
    with socket.socket() as heir:
        heir.bind(("", port))

        assert heir.getsockname()[1] == port


@pytest.mark.parametrize("use_libuv", [0, 1])
def test_store_of_rank_0_listens_on_a_reserved_port(reserver: PortReserver, use_libuv: int) -> None:
    """Both back ends of torch's TCPStore can host on the port while it stays reserved."""
    port = reserver.reserve()
    command = [sys.executable, "-c", HOSTS_A_STORE, str(port), str(use_libuv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "value\n"), done.stderr


@pytest.mark.parametrize("coordinator", ["127.0.0.1", "no-such-host.invalid", "x" * 64])
def test_address_is_one_of_this_host(coordinator: str) -> None:
    """Whatever the coordinator's address, workers are given one that can be bound here."""
    with socket.socket() as bound:
        bound.bind((find_local_address(coordinator), 0))

        assert bound.getsockname()[0] == find_local_address(coordinator)


def test_chosen_port_comes_every_time(reserver: PortReserver) -> None:
    """Round after round, and an earlier run's connections on it do no harm."""
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


def test_chosen_port_of_somebody_else_is_refused_at_once() -> None:
    """Whether another program listens there or has only reserved it."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        PortReserver(server.getsockname()[1])
    with socket.socket() as holder:
        holder.bind(("", 0))
        with pytest.raises(OSError, match="in use"):
            PortReserver(holder.getsockname()[1])


@pytest.mark.parametrize(
    ("address", "here", "loopback"),
    [
        ("127.0.0.1", True, True),
        ("127.8.9.1", True, True),
        ("localhost", True, True),
        ("192.0.2.1", False, False),
        ("no-such-host.invalid", False, False),
        ("", False, False),
        ("x" * 64, False, False),
    ],
)
def test_whose_address_it_is(address: str, here: bool, loopback: bool) -> None:
    """One of this host's is one that can be bound here, by number or by name."""
    assert (is_of_this_host(address), is_loopback(address)) == (here, loopback)
