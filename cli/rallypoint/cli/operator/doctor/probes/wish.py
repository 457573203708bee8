"""Reads how this side means to connect: its flags, variables and files."""

from __future__ import annotations

import os
from contextlib import suppress

from rallypoint.cli.operator.doctor.facts import Wish
from rallypoint.cli.operator.doctor.probes.encryption import read_own_files
from rallypoint.wire.access import TOKEN_VARIABLE, Access


def read_wish(access: Access) -> Wish:
    """Return how this side connects, and whether its files can be used."""
    certificate, error = read_own_files(access)
    mode = 0
    if access.token_file:
        with suppress(OSError, ValueError):
            mode = os.stat(access.token_file).st_mode
    return Wish(
        is_tls=access.uses_tls,
        ca_file=access.ca_file,
        cert_file=access.cert_file,
        key_file=access.key_file,
        server_name=access.server_name,
        token_source=access.token_file or (TOKEN_VARIABLE if access.token else ""),
        token_mode=mode,
        error=error,
        certificate=certificate,
    )
