"""Finds the processes of this host that listen on a port.

Source: the Linux kernel, Documentation/networking/proc_net_tcp.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from rallypoint.base.printable import to_printable_line
from rallypoint.cli.operator.doctor.facts import Listener

_LISTEN = "0A"
_EVERYWHERE = "*"
_PROC = Path("/proc")


def find_listeners(port: int, proc: Path = _PROC) -> list[Listener]:
    """Return who listens on a port, by address; empty where the kernel does not say."""
    inodes: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            text = (proc / "net" / table).read_text(encoding="ascii", errors="replace")
            inodes.update(read_table(text, port))
    if not inodes:
        return []
    owners = _find_owners(frozenset(inodes), proc)
    found = {
        Listener(address, pid, _name(pid, proc)) if pid else Listener(address)
        for inode, address in inodes.items()
        for pid in owners.get(inode, [0])
    }
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
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        address, _, number = fields[1].rpartition(":")
        with suppress(ValueError):
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


def _find_owners(inodes: frozenset[str], proc: Path) -> dict[str, list[int]]:
    """Return the processes with each socket; those of other users cannot be seen."""
    found: dict[str, list[int]] = {}
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in _pids(proc):
        with suppress(OSError):
            for entry in os.scandir(proc / str(pid) / "fd"):
                with suppress(OSError):
                    inode = wanted.get(os.readlink(entry.path))
                    if inode is not None and pid not in found.setdefault(inode, []):
                        found[inode].append(pid)
    return found


def _pids(proc: Path) -> Iterator[int]:
    with suppress(OSError):
        yield from sorted(int(name) for name in os.listdir(proc) if name.isdecimal())


def _name(pid: int, proc: Path) -> str:
    with suppress(OSError):
        return to_printable_line((proc / str(pid) / "comm").read_text(errors="replace").strip())
    return "a process"
