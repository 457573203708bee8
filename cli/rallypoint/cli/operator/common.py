"""What every command of an operator is given: where to ask, how to prove itself, what to print."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

TIMEOUT_S = 10.0
TIMEOUT_S_MIN = 0.001
TIMEOUT_S_MAX = 30 * 24 * 3600.0
"""As long as the longest wait that the coordinator accepts."""


class Format(Enum):
    """How a command prints what it found."""

    TABLE = "table"
    JSON = "json"


class Common(Struct, frozen=True, kw_only=True):
    """The values of the options of every command; an empty text: not given."""

    coordinator: str = ""
    """`host[:port]`, or several with commas in between."""
    context: str = ""
    """Name of a saved context."""
    output: Format = Format.TABLE
    timeout_s: float = TIMEOUT_S
    """How long a call may take."""
    tls: bool = False
    tls_ca: str = ""
    """Path, as the three below."""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    tls_server_name: str = ""
    """Name to expect in the coordinator's certificate instead of its host."""
