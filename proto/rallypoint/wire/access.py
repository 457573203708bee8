"""How a client proves who it is: TLS, its own certificate, a token.

`Access` says which files; it is a value. `Credentials` of the module beside this one reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from rallypoint.base.values import NO, YES

TLS_VARIABLE = "RALLYPOINT_TLS"
CA_VARIABLE = "RALLYPOINT_TLS_CA"
CERT_VARIABLE = "RALLYPOINT_TLS_CERT"
KEY_VARIABLE = "RALLYPOINT_TLS_KEY"
SERVER_NAME_VARIABLE = "RALLYPOINT_TLS_SERVER_NAME"
TOKEN_FILE_VARIABLE = "RALLYPOINT_TOKEN_FILE"
TOKEN_VARIABLE = "RALLYPOINT_TOKEN"
TLS_VARIABLES = (TLS_VARIABLE, CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, SERVER_NAME_VARIABLE)
TOKEN_VARIABLES = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)
"""What no worker may have in its environment."""

TOKEN_CHARS_MIN = 16
"""Of a token that a coordinator is given as a variable. A shorter one could be guessed."""


class Role(Enum):
    """What a caller may do; the order is that of the contract."""

    AGENT = "agent"
    OPERATOR = "operator"
    VIEWER = "viewer"
    WORKER = "worker"
    RELAY = "relay"


GRANTED_ROLES = tuple(role for role in Role if role is not Role.WORKER)
"""Roles that an auth file grants; a caller without limits has them all. The role of a worker
belongs to a round, so only the round's token gives it."""
GRANTED_ROLE_NAMES = " or ".join(
    (", ".join(role.value for role in GRANTED_ROLES[:-1]), GRANTED_ROLES[-1].value)
)
"""The same for people: "agent, operator, viewer or relay"."""


class AccessFailed(ValueError):
    """A file or a variable is of no use: one line that names it, without any content."""


class Access(Struct, frozen=True):
    """How to prove who one is. Empty: not at all, without encryption."""

    is_tls: bool = False
    """Encrypt, and verify the coordinator. Any of the TLS fields below implies it."""
    ca_file: str = ""
    """PEM file with the authorities that may have signed its certificate; empty: the system's."""
    cert_file: str = ""
    """PEM file with the client's own certificate, and the chain after it; empty: none."""
    key_file: str = ""
    """PEM file with its private key, without a passphrase."""
    server_name: str = ""
    """Name that the coordinator's certificate must have; empty: the host of its address."""
    token_file: str = ""
    """File with a token; counts before `token`."""
    token: str = ""
    """The token itself; empty: none."""

    @property
    def uses_tls(self) -> bool:
        """Return whether connections are encrypted."""
        tls = (self.ca_file, self.cert_file, self.key_file, self.server_name)
        return self.is_tls or any(tls)

    @property
    def has_files(self) -> bool:
        """Return whether there is something to read."""
        return self.uses_tls or bool(self.token_file)

    def __repr__(self) -> str:
        """Return all but the token."""
        fields = ", ".join(f"{name}={value!r}" for name, value, *_ in self.__rich_repr__())
        return f"Access({fields})"

    def __rich_repr__(self) -> Any:
        """Yield all but the token, for tracebacks that show values."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value:
                yield name, "***" if name == "token" else value


PLAIN = Access()


def from_environment(environment: Mapping[str, str]) -> Access:
    """Return what the variables say.

    Raises:
        AccessFailed: RALLYPOINT_TLS is neither 1 nor 0.
    """
    switch = environment.get(TLS_VARIABLE, "").strip().lower()
    if switch and switch not in YES | NO:
        raise AccessFailed(f"{TLS_VARIABLE} is neither 1 nor 0")
    access = Access(
        is_tls=switch in YES,
        ca_file=environment.get(CA_VARIABLE, ""),
        cert_file=environment.get(CERT_VARIABLE, ""),
        key_file=environment.get(KEY_VARIABLE, ""),
        server_name=environment.get(SERVER_NAME_VARIABLE, ""),
        token_file=environment.get(TOKEN_FILE_VARIABLE, ""),
        token=environment.get(TOKEN_VARIABLE, "").strip(),
    )
    if switch in NO:  # the other variables may come from a profile that the user cannot change
        return Access(token_file=access.token_file, token=access.token)
    return access


def to_environment(access: Access) -> dict[str, str]:
    """Return the variables of `access`, with absolute paths, but none of its token.

    They are what workers get: they may have another working directory.
    """
    if not access.uses_tls:
        return {}
    paths = {
        CA_VARIABLE: access.ca_file,
        CERT_VARIABLE: access.cert_file,
        KEY_VARIABLE: access.key_file,
    }
    variables = {name: os.path.abspath(path) for name, path in paths.items() if path}
    variables[TLS_VARIABLE] = "1"
    if access.server_name:
        variables[SERVER_NAME_VARIABLE] = access.server_name
    return variables
