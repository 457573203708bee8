"""The way to the coordinator: its name, the connection, and what listens at the other end."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from msgspec import Struct

from rallypoint.base.addresses import is_loopback
from rallypoint.base.names import Unresolved, find
from rallypoint.base.printable import to_printable_line
from rallypoint.cli.operator.doctor.findings import Finding, describe, ok, problem, warning
from rallypoint.cli.operator.reaching import SLOW_S, Heard, Speech
from rallypoint.wire.coordinators import describe_start

NAME, CONNECTION, LISTENER = "name", "connection", "listener"
SLOW_CONNECTION_S = 0.5
"""Twice around the earth: the coordinator would miss heartbeats."""
SHOWN_MAX = 4
"""Addresses in one line."""
ADDRESSES_MAX = 8
"""More addresses of one name would take too long to try."""
_UNANSWERED = frozenset({errno.ETIMEDOUT, errno.EAGAIN, errno.EINPROGRESS})
_NAME_SERVERS = "check the name servers in /etc/resolv.conf, or use an address"
_LISTEN = "0A"
_EVERYWHERE = "*"
_PROC = Path("/proc")


class Endpoint(Struct, frozen=True):
    """Where a coordinator should be."""

    host: str
    """Name or address, without brackets."""
    port: int

    def __str__(self) -> str:
        """Return `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_endpoint(text: str) -> Endpoint:
    """Return what `host:port` names."""
    host, _, port = text.rpartition(":")
    return Endpoint(host.strip("[]"), int(port))


class Lookup(Struct, frozen=True):
    """What the name of a host means."""

    host: str
    addresses: tuple[str, ...] = ()
    """Without repetition, in the resolver's order. Empty: none was found."""
    error: str = ""
    """Of the resolver. Empty when it has found an address or did not answer in time."""
    took_s: float = 0.0


class Reach(IntEnum):
    """How an attempt to connect ended. What says most comes first."""

    OPEN = 0
    REFUSED = 1
    """The host answers, and nothing listens on the port."""
    SILENT = 2
    """There was no answer in time."""
    UNREACHABLE = 3
    """There is no way to the host; `error` says why."""


class Attempt(Struct, frozen=True):
    """An attempt to connect to one address."""

    address: str
    reach: Reach
    took_s: float = 0.0
    error: str = ""
    """Of the operating system."""


def look_up(host: str, limit_s: float) -> Lookup:
    """Return what a name means; the resolver's own limit may be much longer."""
    began_s = time.monotonic()
    addresses, error = tuple[str, ...](), ""
    try:
        addresses = find(host, limit_s).addresses
    except Unresolved as failed:
        error = "" if failed.is_slow else str(failed)
    return Lookup(host, addresses, error, time.monotonic() - began_s)


def check_name(lookup: Lookup) -> Finding:
    """Judge whether the name of the host means an address."""
    host, took = lookup.host, describe(lookup.took_s)
    if lookup.error:
        return problem(NAME, lookup.error, f"try: getent hosts {host}; or use an address")
    if not lookup.addresses:
        return problem(NAME, f"the look-up of {host!r} has no answer after {took}", _NAME_SERVERS)
    if (host,) == lookup.addresses:
        return ok(NAME, "an address")
    text = f"{host} is {_join(lookup.addresses)}"
    if lookup.took_s > SLOW_S:
        return warning(NAME, f"{text}, but the look-up takes {took}", _NAME_SERVERS)
    return ok(NAME, f"{text}, found in {took}")


def connect(addresses: Sequence[str], port: int, limit_s: float) -> list[Attempt]:
    """Return how each address answers, in order; the first that does ends it."""
    attempts = []
    for address in addresses[:ADDRESSES_MAX]:
        began_s = time.monotonic()
        reach, text = Reach.OPEN, ""
        try:
            socket.create_connection((address, port), limit_s).close()
        except ConnectionRefusedError:
            reach = Reach.REFUSED
        except OSError as error:
            is_silent = isinstance(error, TimeoutError) or error.errno in _UNANSWERED
            reach = Reach.SILENT if is_silent else Reach.UNREACHABLE
            text = error.strerror or str(error)
        attempts.append(Attempt(address, reach, time.monotonic() - began_s, text))
        if reach is Reach.OPEN:
            break
    return attempts


def check_connection(endpoint: Endpoint, attempts: Sequence[Attempt]) -> Finding:
    """Judge whether the port can be reached, at any of the addresses of the host."""
    best = min(attempts, key=lambda one: one.reach)  # the host that refuses says most
    where, took = Endpoint(best.address, endpoint.port), describe(best.took_s)
    match best.reach:
        case Reach.OPEN:
            text = f"{where} answers in {took}"
            if others := [one.address for one in attempts if one is not best]:
                text += f"; {_join(others)} does not"
            if best.took_s <= SLOW_CONNECTION_S:
                return ok(CONNECTION, text)
            advice = "check the load of the network: heartbeats and restarts take at least as long"
            return warning(CONNECTION, text, advice)
        case Reach.REFUSED:
            advice = f"check the port, or {describe_start(str(endpoint))}"
            return problem(CONNECTION, f"nothing listens on {where}", advice)
        case Reach.SILENT:
            advice = (
                f"check that the host is up, and that no firewall drops TCP port {endpoint.port}"
            )
            return problem(CONNECTION, f"{where} does not answer within {took}", advice)
        case _:
            advice = f"check the network of this host: ip route get {best.address}"
            return problem(CONNECTION, f"{where} cannot be reached: {best.error}", advice)


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


def check_listener(
    endpoint: Endpoint, heard: Heard, listeners: Sequence[Listener]
) -> list[Finding]:
    """Judge what listens, and whether more than one program does.

    Args:
        endpoint: of the coordinator.
        heard: what it answers.
        listeners: processes on the port, if it is a port of this host. Empty: unknown.
    """
    findings = []
    if len({one.pid or one.address for one in listeners}) > 1:
        shown = _join([f"{_describe(one)} on {one.address}" for one in listeners])
        text = f"several programs listen on port {endpoint.port}: {shown}"
        advice = "end all but the coordinator, or give the coordinator another --port"
        findings.append(warning(LISTENER, text, advice))
    match heard.speech:
        case Speech.HTTP2 | Speech.TLS:
            return findings
        case Speech.HTTP1:
            what = f"a web server listens on {endpoint}; coordinators speak HTTP/2"
        case Speech.OTHER:
            act = f"sends {heard.words!r}" if heard.words else "closes the connection"
            what = f"another program listens on {endpoint}; it {act}"
        case _:
            what = f"what listens on {endpoint} sends nothing"
    if len(listeners) == 1:
        what += f"; process {_describe(listeners[0])}"
    advice = "check the port of the coordinator: its log begins with it, and --coordinator takes it"
    return [*findings, problem(LISTENER, what, advice)]


def _describe(one: Listener) -> str:
    return f"{one.name} ({one.pid})" if one.pid else "one of another user"


def _join(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more


def is_own(address: str) -> bool:
    """Return whether an address is one of this host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))  # allowed for own addresses alone
        return True
    return False


def is_exposed(address: str, listeners: Sequence[Listener]) -> bool:
    """Return whether other hosts may reach the coordinator too, as far as is known here.

    Args:
        address: that has accepted a connection.
        listeners: processes on the port, if it is a port of this host. Empty: unknown.
    """
    return not all(map(is_loopback, [one.address for one in listeners] or [address]))
