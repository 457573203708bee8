"""Finds the processes of this host that listen on a port.

Source: the Linux kernel, Documentation/networking/proc_net_tcp.rst.
"""

from __future__ import annotations

import os
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from msgspec import Struct

from rallypoint.base.printable import to_printable_line

_LISTEN = "0A"
_EVERYWHERE = "*"
_PROC = Path("/proc")


class Listener(Struct, frozen=True):
    """A process of this host that listens on a port."""

    address: str
    """On which it listens; `*`: on all of them."""
    pid: int = 0
    """0: of another user, so unknown."""
    name: str = ""
    """Of its program. Empty: unknown."""


def find_listeners(port: int) -> list[Listener]:
    """Return who listens on a port, by address; empty where the kernel does not say."""
    inodes: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            text = (_PROC / "net" / table).read_text(encoding="ascii", errors="replace")
            inodes.update(read_table(text, port))
    owned = _find_owners(frozenset(inodes)) if inodes else set[tuple[str, int]]()
    known = {inode for inode, _ in owned}
    found = {Listener(inodes[inode], pid, _name(pid)) for inode, pid in owned}
    found |= {Listener(address) for inode, address in inodes.items() if inode not in known}
    return sorted(found, key=lambda one: (one.address, one.pid))


def read_table(text: str, port: int) -> dict[str, str]:
    """Return the inode and the address of every socket that listens on a port.

    Args:
        text: of /proc/net/tcp or /proc/net/tcp6.
        port: the port.
    """
    found = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 10 and fields[3] == _LISTEN:
            address, _, number = fields[1].rpartition(":")
            if int(number, 16) == port:
                found[fields[9]] = _read_address(address)
    return found


def _read_address(text: str) -> str:
    """Return an address of a table: words of 32 bits, each in the order of the host's bytes."""
    raw = bytes.fromhex(text)
    raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address = IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)
    if address.is_unspecified:
        return _EVERYWHERE
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def _find_owners(inodes: frozenset[str]) -> set[tuple[str, int]]:
    """Return each socket with the processes that have it; those of other users cannot be seen."""
    found = set()
    for pid in (int(name) for name in os.listdir(_PROC) if name.isdecimal()):
        with suppress(OSError):
            for entry in os.scandir(_PROC / str(pid) / "fd"):
                with suppress(OSError):
                    inode = os.readlink(entry.path).removeprefix("socket:[").removesuffix("]")
                    if inode in inodes:
                        found.add((inode, pid))
    return found


def _name(pid: int) -> str:
    with suppress(OSError):
        return to_printable_line((_PROC / str(pid) / "comm").read_text(errors="replace").strip())
    return "a process"
