"""The addresses of this host's network interfaces that are up.

Source: netdevice(7), and /proc/net/if_inet6 as the kernel's net/ipv6/addrconf.c writes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
_GLOBAL = "00"
"""Scope of an address that other links can reach."""


def find_addresses(inet6: Path = Path("/proc/net/if_inet6")) -> list[str]:
    """Return the addresses of interfaces that have a link, but for loopback: IPv4 first.

    In the order of the interfaces: those of containers and tunnels are made after the cards.
    """
    names = [name for _, name in sorted(socket.if_nameindex())]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        linked = [name for name in names if _has_link(asking, name)]
        found = [address for name in linked for address in _find_ipv4(asking, name)]
    with contextlib.suppress(OSError):  # there is no IPv6, or no /proc
        rows = [line.split() for line in inet6.read_text().splitlines()]
        ipv6 = [(row[5], row[0]) for row in rows if len(row) == 6 and row[3] == _GLOBAL]
        packed = [bytes.fromhex(one) for name in linked for of, one in ipv6 if of == name]
        found += [socket.inet_ntop(socket.AF_INET6, one) for one in packed]
    return found


def _has_link(asking: socket.socket, name: str) -> bool:
    try:
        answer = fcntl.ioctl(asking, _SIOCGIFFLAGS, struct.pack("16sh14x", name.encode(), 0))
    except OSError:
        return False
    flags: int = struct.unpack_from("h", answer, 16)[0]
    return flags & (_UP | _RUNNING | _LOOPBACK) == _UP | _RUNNING


def _find_ipv4(asking: socket.socket, name: str) -> Iterator[str]:
    with contextlib.suppress(OSError):  # it has none
        answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("16s16x", name.encode()))
        yield socket.inet_ntoa(answer[20:24])
