"""How a key of torch is named at the coordinator.

torch's keys may hold anything; those of the contract are printable, have no spaces and are short.
What they may not hold is written as in an address, "%20" for a space; so is "%" itself, so no two
keys get the same name. A key that is too long gets a digest for a name.
"""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import unquote

NAME_BYTES_MAX = 512
"""Longest key of the contract."""
PREFIX_BYTES_MAX = 128
"""Longest prefix of a store: it leaves room for a digest."""
DIGEST_MARK = "%long-"
"""No escaped key begins with it: the letters after "%" are hexadecimal there."""
_DIGEST_BYTES = 32


def encode_key(key: str, bytes_max: int) -> str:
    """Return the name of a key.

    Args:
        key: any text.
        bytes_max: longest name in bytes, at least 128.
    """
    name = "".join(one if _is_plain(one) else _escape(one) for one in key) or "%"
    if len(name.encode()) <= bytes_max:
        return name
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
    return DIGEST_MARK + digest.hexdigest()


def is_digest(name: str) -> bool:
    """Return whether the key cannot be read from its name."""
    return name.startswith(DIGEST_MARK)


def decode_key(name: str) -> str:
    """Return the key with this name, which is no digest."""
    return "" if name == "%" else unquote(name, errors="surrogatepass")


def _is_plain(one: str) -> bool:
    return one.isprintable() and one not in " %"


def _escape(one: str) -> str:
    return "".join(f"%{byte:02x}" for byte in one.encode("utf-8", "surrogatepass"))
