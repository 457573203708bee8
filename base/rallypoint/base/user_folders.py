"""Where a user's programs keep what others of the same user have to find."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NOWHERE = Path("/dev/null/nonexistent")
"""A folder that cannot be made, not even by root."""


def find_state_home() -> Path:
    """Return the folder for state that outlives its program."""
    return _state_home() / "rallypoint"


def find_temporary_home() -> Path:
    """Return the folder that stands for it: containers often have no home.

    It lies among the temporary files, where another user could have made it before.
    """
    return _temporary() / f"rallypoint-{os.getuid()}"


def find_host_name() -> str:
    """Return the name of this host, as it is in names of files: homes are often shared by hosts."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename)


def name_hosted(port: int) -> str:
    """Return the name of the folder of a coordinator that an agent of this host has started."""
    return f"hosted-{find_host_name()}-{port}"


def _state_home() -> Path:
    # The specification of XDG ignores relative paths.
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if folder.is_absolute():
        return folder
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError:
        return _NOWHERE  # the temporary folder can be made


def _temporary() -> Path:
    import tempfile  # few programs need it, and it loads much

    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return _NOWHERE  # everything may be read-only but the state folder
