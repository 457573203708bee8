"""The first import of gRPC in the program of a user.

gRPC's C core reads its variables once, while it is loaded; later changes have no effect. Only the C
core sees what is set here: `os.environ` stays as it is, because other threads may copy it at any
time. A child that another thread starts during the import, without an environment, inherits it.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Mapping

FORKS_OFF = {"GRPC_ENABLE_FORK_SUPPORT": "0"}
"""No handlers of fork: they would write that they cannot run."""
QUIET = {"GRPC_VERBOSITY": "NONE"}
"""No lines of the C core."""
_lock = threading.Lock()


def load_grpc(variables: Mapping[str, str]) -> None:
    """Import gRPC with these variables, unless the program has imported it or has set one.

    Args:
        variables: by name, for the C core alone.
    """
    with _lock:
        if "grpc" in sys.modules or any(name in os.environ for name in variables):
            return
        for name, value in variables.items():
            os.putenv(name, value)
        try:
            importlib.import_module("grpc")
        finally:
            for name in variables:
                _restore(name)


def _restore(name: str) -> None:
    """Make a variable what `os.environ` says again; another thread may have set it meanwhile."""
    value = os.environ.get(name)
    if value is None:
        os.unsetenv(name)
    else:
        os.putenv(name, value)
