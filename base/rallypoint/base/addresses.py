"""Facts about network addresses that need no look-up."""

from __future__ import annotations

import ipaddress
import re

_NAME = r"(?!-)[\w-]{1,63}(?<!-)(\.(?!-)[\w-]{1,63}(?<!-))*\.?"
"""Labels between dots: RFC 1123, with underscores and the letters of other scripts. Text, not a
compiled pattern: `re` compiles it when it is first used, not at import."""
_HOST = r"[\w.-]+|\[[0-9a-fA-F:.]+(%[\w.-]+)?\]"
"""A name, an IPv4 address, or an IPv6 address in brackets, perhaps with a zone."""
COORDINATOR_PORT = 50_051
"""The port of a coordinator that names none."""


def is_loopback(address: str) -> bool:
    """Return whether other hosts cannot reach this address."""
    return address.startswith("127.") or address in ("::1", "localhost")


def is_wildcard(address: str) -> bool:
    """Return whether a server listens on every address of its host with this one."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return not address


def is_address(text: str) -> bool:
    """Return whether a text is an IP address, perhaps with a zone, or could be a host name."""
    if re.fullmatch(_NAME, text):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return text.isprintable()


def parse_endpoint(text: str, default_port: int = COORDINATOR_PORT) -> str | None:
    """Return `host:port` for a text `host[:port]`, or None for another text.

    An IPv6 address with a port needs brackets.
    """
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port or (":" in host and not host.startswith("[")):
        host, port = text, str(default_port)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if not re.fullmatch(_HOST, host) or not port.isdecimal() or not 0 < int(port) < 65_536:
        return None
    return f"{host}:{port}"


def parse_endpoints(text: str) -> str:
    """Return `host:port,host:port,…` for a text `host[:port],…`, or `host:port` for a single one.

    So agents, clients and workers are given coordinators that share a store. Spaces around an
    address do not count.

    Raises:
        ValueError: one of them is not an address; the text says which.
    """
    parsed = []
    for part in text.split(","):
        one = parse_endpoint(part.strip())
        if one is None:
            raise ValueError(f"{part.strip()!r} is not HOST:PORT")
        parsed.append(one)
    return ",".join(dict.fromkeys(parsed))


def first_host(endpoints: str) -> str:
    """Return the host of `host:port`, or of the first of several, without brackets."""
    return endpoints.partition(",")[0].rpartition(":")[0].strip("[]")


def have_common_endpoint(one: str, other: str) -> bool:
    """Return whether an address is in both lists, each of them as `parse_endpoints` returns it."""
    return not {*one.split(",")}.isdisjoint(other.split(","))
