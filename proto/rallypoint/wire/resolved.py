"""Where a coordinator is: `host:port`, and the addresses that its host has at the moment.

gRPC gets addresses, not names. Its own resolver asks for IPv4 and IPv6 apart: for a name of the
hosts file that has one of them, it waits for name servers, and starts again with each channel.
Certificates are still verified for the name.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.base.addresses import first_host, parse_endpoint
from rallypoint.base.names import LOOK_UP_S_MAX, find, find_soon, read_literal


class Resolved(Struct, frozen=True):
    """Where a channel leads."""

    target: str
    """As it was given: `host:port`, or whatever else gRPC can connect to."""
    addresses: tuple[str, ...] = ()
    """In the order in which they are tried. Empty: the target is no name of a host."""

    @property
    def host_addresses(self) -> tuple[str, ...]:
        """Return the addresses of the host; none if the target is on no network."""
        host = first_host(self.target)
        return self.addresses or ((host,) if read_literal(host) else ())

    @property
    def uri(self) -> str:
        """Return what gRPC connects to."""
        if not self.addresses:
            return self.target
        port = self.target.rpartition(":")[2]
        if not any(":" in address for address in self.addresses):
            return "ipv4:" + ",".join(f"{address}:{port}" for address in self.addresses)
        return "ipv6:" + ",".join(f"[{_to_ipv6(address)}]:{port}" for address in self.addresses)


def resolve(target: str, limit_s: float = LOOK_UP_S_MAX) -> Resolved:
    """Return where a channel leads; blocks, within the limit, while no address is known.

    Raises:
        Unresolved: the name has no address, or none is known in time.
    """
    if not has_name(target):
        return Resolved(target)
    return Resolved(target, find(first_host(target), limit_s).addresses)


async def resolve_soon(target: str, limit_s: float = LOOK_UP_S_MAX) -> Resolved:
    """Return the same without blocking the event loop."""
    if not has_name(target):
        return Resolved(target)
    return Resolved(target, (await find_soon(first_host(target), limit_s)).addresses)


def has_name(target: str) -> bool:
    """Return whether a target is `name:port`: neither an address nor such as `unix:PATH`."""
    return parse_endpoint(target) == target and read_literal(first_host(target)) is None


def _to_ipv6(address: str) -> str:
    """Return an address for a list of gRPC, which has one family: IPv4 as RFC 4291 maps it."""
    return address.replace("%", "%25") if ":" in address else f"::ffff:{address}"
