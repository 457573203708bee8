"""Facts about network addresses that need no look-up."""

from __future__ import annotations

import ipaddress
import re

_NAME = r"(?!-)[\w-]{1,63}(?<!-)(\.(?!-)[\w-]{1,63}(?<!-))*\.?"
"""Labels between dots: RFC 1123, with underscores and the letters of other scripts. Text, not a
compiled pattern: `re` compiles it when it is first used, not at import."""


def is_loopback(address: str) -> bool:
    """Return whether other hosts cannot reach this address."""
    return address.startswith("127.") or address in ("::1", "localhost")


def is_address(text: str) -> bool:
    """Return whether a text is an IP address, perhaps with a zone, or could be a host name."""
    if re.fullmatch(_NAME, text):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return text.isprintable()
