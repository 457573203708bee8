"""Finds out who is connected to a port of this process, also when gRPC does not say.

gRPC tells the peer of a call, not of a connection. But its sockets are files of this process, and
any of them can be asked for its peer. That changes nothing about it, and keeps none open: a file
that was closed meanwhile gives an error, and one that was opened since tells its own peer.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
from collections.abc import Callable
from urllib.parse import unquote

Peer = bytes
"""An address in 16 bytes (an IPv4 address as it is written in IPv6) and a port in 2."""
_FOLDERS = ("/proc/self/fd", "/dev/fd")
"""Which files are open: on Linux, elsewhere."""
_IPV4_BYTES, _IPV6_BYTES = 16, 28
"""Sizes of a socket's address."""
_MAPPED = b"\0" * 10 + b"\xff\xff"
"""What an IPv4 address begins with in IPv6."""
_libc = ctypes.PyDLL(None)
"""Its calls keep Python's lock: they never wait, and to get it back may take milliseconds."""


def find_peers(port: int) -> frozenset[Peer]:
    """Return the peers of all open connections that a port of this process has accepted.

    It takes some microseconds for each open file.

    Raises:
        OSError: when it cannot be known.
    """
    folder = next(path for path in _FOLDERS if os.path.isdir(path) or path == _FOLDERS[-1])
    ends = _Ends()
    wanted = port.to_bytes(2, "big")
    found = set()
    for name in os.listdir(folder):
        file = int(name)
        if ends.ask(_libc.getsockname, file)[16:] == wanted:
            found.add(ends.ask(_libc.getpeername, file))
    return frozenset(found - {b""})


def read_peer(text: str) -> Peer:
    """Return a peer as gRPC names it, such as ipv4:10.0.0.1:4711; empty: it is no IP address."""
    kind, _, rest = unquote(text).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return b""
    try:
        packed = ipaddress.ip_address(host.strip("[]").partition("%")[0]).packed
    except ValueError:
        return b""
    return _join(packed, int(port).to_bytes(2, "big"))


def show_peer(peer: Peer) -> str:
    """Return a peer as audit lines have it."""
    address = ipaddress.IPv6Address(peer[:16])
    port = int.from_bytes(peer[16:], "big")
    mapped = address.ipv4_mapped
    return f"ipv6:[{address}]:{port}" if mapped is None else f"ipv4:{mapped}:{port}"


class _Ends:
    """Asks sockets for their addresses."""

    def __init__(self) -> None:
        self._raw = bytearray(128)
        self._address = (ctypes.c_char * len(self._raw)).from_buffer(self._raw)
        self._size = ctypes.c_uint32()
        self._size_pointer = ctypes.pointer(self._size)

    def ask(self, call: Callable[..., int], file: int) -> Peer:
        """Return the address of one end of a socket; empty: it is none with an IP address."""
        self._size.value = len(self._raw)
        if call(file, self._address, self._size_pointer) != 0:
            return b""
        raw = self._raw
        if self._size.value == _IPV4_BYTES:
            return _join(bytes(raw[4:8]), bytes(raw[2:4]))
        if self._size.value == _IPV6_BYTES:
            return _join(bytes(raw[8:24]), bytes(raw[2:4]))
        return b""


def _join(packed: bytes, port: bytes) -> Peer:
    return (_MAPPED + packed if len(packed) == 4 else packed) + port
