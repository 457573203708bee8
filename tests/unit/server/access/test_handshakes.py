"""Connections that end without a call: which of them have a line, and whose it is."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rallypoint.server.rpc.guards.access.handshakes import MINUTE_S, Handshakes
from rallypoint.server.rpc.guards.access.sockets import Peer, find_peers, read_peer, show_peer

X, Y, OWN = "ipv4:10.0.0.1:4711", "ipv4:10.0.0.2:4712", "ipv4:127.0.0.1:50000"


class Scene:
    """A clock, the connections of a port, and the lines."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.connected: set[str] = set()
        self.lines: list[str | int] = []
        self.handshakes = Handshakes(lambda: self.now_s, self.find)
        self.handshakes.port = 1

    def find(self, port: int) -> frozenset[Peer]:
        return frozenset(map(read_peer, self.connected))

    def note_no_call(self, peer: str) -> None:
        self.lines.append(peer)

    def note_no_calls(self, count: int) -> None:
        self.lines.append(count)

    def connect(self, *peers: str) -> None:
        """Let handshakes begin, one after another."""
        for peer in peers:
            self.connected.add(peer)
            self.handshakes._spare_s = 1.0  # there is time to look
            self.handshakes.note_begun()

    def connect_unseen(self) -> None:
        """Let a handshake begin and fail before there is time to look."""
        self.handshakes._spare_s = float("-inf")
        self.handshakes.note_begun()

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_s += 1
            self.handshakes._spare_s = 1.0
            self.handshakes.find()
            self.handshakes.look(self)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_connection_without_call_has_a_line(scene: Scene) -> None:
    """When it has ended, and once; one with a call has none."""
    scene.connect(X, Y)
    scene.handshakes.note_call(Y)
    scene.look(3)
    before = list(scene.lines)
    scene.connected.clear()
    scene.look(5)

    assert ([], [X]) == (before, scene.lines)


def test_call_may_come_late(scene: Scene) -> None:
    """Its client has gone already when its turn comes."""
    scene.connect(X)
    scene.connected.clear()
    scene.look()
    scene.handshakes.note_call(X)
    scene.look(3)

    assert [] == scene.lines


def test_number_of_those_that_were_not_seen(scene: Scene) -> None:
    """Soon after the first one; then once a minute."""
    for _ in range(3):
        scene.connect_unseen()
    scene.look(2)
    first = list(scene.lines)
    for _ in range(2):
        scene.connect_unseen()
    scene.look(3)
    soon = list(scene.lines)
    scene.now_s += MINUTE_S
    scene.look()

    assert ([3], [3], [3, 2]) == (first, soon, scene.lines)


def test_end_tells_what_was_not_told(scene: Scene) -> None:
    """It is not lost with the coordinator."""
    for _ in range(2):
        scene.connect_unseen()
        scene.look(2)
    scene.handshakes.close(scene)
    scene.handshakes.close(scene)

    assert [1, 1] == scene.lines


def test_address_is_used_again(scene: Scene) -> None:
    """By a stranger, after a peer with calls has left."""
    scene.connect(X)
    scene.handshakes.note_call(X)
    scene.connected.clear()
    scene.now_s += 2 * MINUTE_S
    scene.connect(Y)
    scene.handshakes.note_call(Y)
    scene.connect(X)
    scene.look()
    scene.connected.remove(X)
    scene.look(2)

    assert [X] == scene.lines


def test_quiet_connection_stays_known(scene: Scene) -> None:
    """A session has one call, which may last for days: its end is no stranger's."""
    scene.connect(X)
    scene.handshakes.note_call(X)
    scene.now_s += 10 * MINUTE_S
    scene.connect(Y)
    scene.look(3)
    scene.connected.clear()
    scene.look(3)

    assert [Y] == scene.lines


@pytest.mark.parametrize("translated", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_own_probe_is_no_stranger(scene: Scene, *, translated: bool, early: bool) -> None:
    """A coordinator that shares a store looks whether it is reached where it says.

    On the way, its address may have been replaced.
    """
    peer = "ipv4:192.0.2.1:1" if translated else OWN
    if early:
        scene.handshakes.note_probe(OWN)
    scene.connect(peer)
    if not early:
        scene.handshakes.note_probe(OWN)
    scene.connected.clear()
    scene.look(4)
    scene.connect(X)
    scene.connected.clear()
    scene.look(4)

    assert [X] == scene.lines


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("listens", ["127.0.0.1", "::", "::1"])
async def test_peers_of_a_port_are_found(host: str, listens: str) -> None:
    """With the family that the client has, also through a socket for both; no other sockets."""
    if (listens, host) in (("127.0.0.1", "::1"), ("::1", "127.0.0.1")):
        return  # they do not meet
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    server = socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::")
    port: int = server.getsockname()[1]
    with server:
        assert frozenset() == find_peers(port)
        _, writer = await asyncio.open_connection(host, port)
        accepted, _ = server.accept()
        with accepted:
            own = writer.get_extra_info("sockname")[1]
            text = f"ipv6:[{host}]:{own}" if ":" in host else f"ipv4:{host}:{own}"

            assert frozenset({read_peer(text)}) == find_peers(port)
            assert text == show_peer(read_peer(text))
        writer.close()
        assert frozenset() == find_peers(port)


def test_peers_as_grpc_names_them() -> None:
    """An IPv4 address is the same in IPv6; a path has none."""
    assert read_peer("ipv4:10.0.0.1:80") == read_peer("ipv6:%5B::ffff:10.0.0.1%5D:80")
    assert "ipv6:[2001:db8::1]:80" == show_peer(read_peer("ipv6:%5B2001:db8::1%5D:80"))
    assert [b"", b"", b""] == [read_peer(text) for text in ("unix:/x", "ipv4:nowhere:1", "")]
