"""gRPC in the program of a user: how it is loaded, and which process may use it.

gRPC's C core reads its variables once, while it is loaded; later changes have no effect. Only the C
core sees what is set here: `os.environ` stays as it is, because other threads may copy it at any
time. A child that another thread starts during the import, without an environment, inherits it.

Its handlers of fork expect that no thread is inside gRPC. An agent's thread always is, and then the
C core may start threads in the child that end it by SIGSEGV. So a program with an agent loads gRPC
without these handlers. Its forks cannot use gRPC: no thread would serve their channels, and calls
would wait for ever, also those with a deadline.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading

FORKS = "GRPC_ENABLE_FORK_SUPPORT"
QUIET = {"GRPC_VERBOSITY": "NONE"}
"""No lines of the C core."""
FORKS_OFF = {FORKS: "0"}
"""No handlers of fork."""
_FALSE = ("0", "false", "f", "no", "n")
"""What the C core takes for it, in any case."""
_lock = threading.Lock()
_loaded_off: list[bool] = []
"""Has an item once gRPC was loaded here without handlers of fork."""
_claims: dict[str, int] = {}
"""The process that has used gRPC, in it and in its forks; `setdefault` needs no lock."""


def load_grpc(*, is_quiet: bool = False) -> None:
    """Import gRPC without handlers of fork, unless the program has imported it.

    A variable that the program has set counts.

    Args:
        is_quiet: let the C core write no lines.
    """
    with _lock:
        if "grpc" in sys.modules:
            return
        wanted = FORKS_OFF | QUIET if is_quiet else FORKS_OFF
        variables = {name: value for name, value in wanted.items() if name not in os.environ}
        for name, value in variables.items():
            os.putenv(name, value)
        try:
            importlib.import_module("grpc")
            if FORKS in variables:
                _loaded_off.append(True)
        finally:
            for name in variables:
                _restore(name)


def has_fork_handlers() -> bool:
    """Return whether gRPC is loaded with handlers of fork, as far as that can be known."""
    if "grpc" not in sys.modules or _loaded_off:
        return False
    return os.environ.get(FORKS, "1").lower() not in _FALSE


def claim_grpc(*, is_agent: bool = False) -> bool:
    """Return whether this process may use gRPC; it may not if it is a fork of one that uses it.

    With handlers of fork, a client's use does not count: they may work. An agent's always does.

    Args:
        is_agent: an agent is about to start.
    """
    pid = os.getpid()
    if is_agent or not has_fork_handlers():
        return _claims.setdefault(FORKS, pid) == pid
    return _claims.get(FORKS, pid) == pid


def _restore(name: str) -> None:
    """Make a variable what `os.environ` says again; another thread may have set it meanwhile."""
    value = os.environ.get(name)
    if value is None:
        os.unsetenv(name)
    else:
        os.putenv(name, value)
