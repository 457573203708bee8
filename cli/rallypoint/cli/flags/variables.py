"""Environment variables that set flags, as with torchrun: PET_ and the name of the flag.

A flag on the command line wins, even if the flag is repeatable. An empty variable counts as not
set, because templates leave such variables behind.
"""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.cli.flags.flag import Flag

PREFIX = "PET_"
OTHER_VARIABLES = {
    "shutdown_timeout": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "log_level": "LOGLEVEL",
    "log_format": "RALLYPOINT_LOG_FORMAT",
    "linger": "RALLYPOINT_LINGER",
    "tls": "RALLYPOINT_TLS",
    "tls_ca": "RALLYPOINT_TLS_CA",
    "tls_cert": "RALLYPOINT_TLS_CERT",
    "tls_key": "RALLYPOINT_TLS_KEY",
    "tls_server_name": "RALLYPOINT_TLS_SERVER_NAME",
    "token_file": "RALLYPOINT_TOKEN_FILE",
}
"""A second variable of these flags; the PET_ variable wins."""
SHARED = ("RALLYPOINT_LOG_FORMAT", "RALLYPOINT_LINGER")
"""The variables that every command reads. All others are for node-agent only."""
_LOG_LEVELS = {
    "NOTSET": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "WARNING": "warning",
    "ERROR": "error",
    "FATAL": "error",
    "CRITICAL": "error",
}
"""Our level for each of Python's."""


def find_variable(
    flag: Flag, environment: Mapping[str, str], *, shared_only: bool
) -> tuple[str, str] | None:
    """Return the variable that sets this flag and its text; None if none is set."""
    for name in variables_of(flag, shared_only=shared_only):
        value = environment.get(name, "")
        if name == "LOGLEVEL":
            value = _LOG_LEVELS.get(
                value.upper(), ""
            )  # other programs read it too, with more levels
        if value:
            return name, value
    return None


def variables_of(flag: Flag, *, shared_only: bool = False) -> tuple[str, ...]:
    """Return the variables that set a flag; the first one that is set wins."""
    if flag.prints:
        return ()
    own = f"{PREFIX}{flag.dest.upper()}"
    names = (own, *filter(None, (OTHER_VARIABLES.get(flag.dest),)))
    return tuple(name for name in names if name in SHARED) if shared_only else names
