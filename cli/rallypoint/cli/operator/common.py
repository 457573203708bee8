"""What every command of an operator is given: where to ask, how to prove itself, what to print."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.wire.access import Access

TIMEOUT_S = 10.0
TIMEOUT_S_MIN = 0.001
TIMEOUT_S_MAX = 30 * 24 * 3600.0
"""As long as the longest wait that the coordinator accepts."""


class Format(Enum):
    """How a command prints what it found."""

    TABLE = "table"
    JSON = "json"


class AccessOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to prove who one is, as options and saved contexts name it; an empty text: not given.

    The option of a field is its name with dashes, and its variable is the name after RALLYPOINT_.
    """

    tls: bool = False
    tls_ca: str = ""
    """Path, as the two below."""
    tls_cert: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    """Name to expect in the coordinator's certificate instead of its host."""
    token_file: str = ""
    """Path."""

    def over(self, base: Access) -> Access:
        """Return an access in which what is given here counts, and else the other's."""
        return Access(
            is_tls=self.tls or base.is_tls,
            ca_file=self.tls_ca or base.ca_file,
            cert_file=self.tls_cert or base.cert_file,
            key_file=self.tls_key or base.key_file,
            server_name=self.tls_server_name or base.server_name,
            token_file=self.token_file or base.token_file,
            token=base.token,
        )


class Common(AccessOptions, frozen=True, kw_only=True):
    """The values of the options of every command; an empty text: not given."""

    coordinator: str = ""
    """`host[:port]`, or several with commas in between."""
    context: str = ""
    """Name of a saved context."""
    output: Format = Format.TABLE
    timeout_s: float = TIMEOUT_S
    """How long a call may take."""
