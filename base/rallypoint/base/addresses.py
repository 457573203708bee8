"""Facts about network addresses that need no look-up."""

from __future__ import annotations


def is_loopback(address: str) -> bool:
    """Return whether other hosts cannot reach this address."""
    return address.startswith("127.") or address in ("::1", "localhost")
