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
