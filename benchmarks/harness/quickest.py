"""torchrun in its quickest setting, for every benchmark that measures beside it."""

from __future__ import annotations

import sys
from pathlib import Path

RENDEZVOUS = (
    "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,join_timeout=120,"
    "close_timeout=1,heartbeat_timeout=2"
)
"""The least that the rendezvous of torch takes: whole seconds, and two missed beats."""
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
"""Workers get a separate store. In that of the agents, keys begin with the restart count, which
differs between an agent whose worker has failed and one that has only noticed a change: then the
process group never forms."""
FLAGS = ("--rdzv-conf", RENDEZVOUS, "--monitor-interval", "0.02", "--shutdown-timeout", "1")
"""And a look at the workers every 20 ms, and at most 1 s for them to end."""
FT_LAUNCHER = Path(sys.executable).with_name("ft_launcher")
NVRX = (
    *("/usr/bin/env", OWN_STORE, str(FT_LAUNCHER), "--ignore-missing-fault-tol-cfg"),
    *("--rdzv-conf", RENDEZVOUS),
    *("--monitor-interval", "0.02", "--workers-stop-timeout", "1", "--term-timeout", "1"),
    *("--ft-workload-check-interval", "0.02", "--ft-enable-nic-monitor", "False"),
)
"""The launcher of NVIDIA's resiliency extension has torch's rendezvous, and looks as often."""


def torchrun(*flags: str) -> list[str]:
    """Return the command line of torchrun with these flags and its quickest settings."""
    program = str(Path(sys.executable).parent / "torchrun")
    return ["/usr/bin/env", OWN_STORE, program, *flags, *FLAGS]


def meet_at(endpoint: str, nodes: str = "2") -> list[str]:
    """Return the flags of a job whose nodes meet at the first one."""
    return ["--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
