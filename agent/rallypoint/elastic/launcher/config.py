"""The configuration of a launch: torch's fields, with torch's defaults."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from rallypoint.elastic.logs.logs_specs import DefaultLogsSpecs, LogsSpecs
from rallypoint.elastic.values.numa import NumaOptions

SHUTDOWN_TIMEOUT_ENV = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_TIMEOUT_S = 30
RDZV_TIMEOUT_S = 900
"""torch's default for the time until enough nodes have joined."""


@dataclass
class LaunchConfig:
    """How the workers of a job are launched on this node."""

    min_nodes: int
    """Nodes that a round needs, at least 1."""
    max_nodes: int
    """Nodes that a round takes."""
    nproc_per_node: int
    """Workers on this node; other nodes may have another number."""
    logs_specs: LogsSpecs | None = None
    """Where the output of the workers goes; None: the console."""
    run_id: str = ""
    """Name of the job, the same on all nodes; empty: named after Slurm's job, else after the port
    of a coordinator that a node hosts, else drawn. A single node always draws one."""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    """Host and port of the coordinator. A single node without one, or with port 0, gets a
    built-in coordinator, in this process."""
    rdzv_backend: str = "etcd"
    """"rallypoint", or a name of torch's ("c10d", "static", "etcd", "etcd-v2"): the same."""
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    """Options of the job; docs/python.md lists them."""
    rdzv_timeout: int = -1
    """Seconds; deprecated: use `rdzv_configs["timeout"]`."""
    max_restarts: int = 3
    """Restarts after failures, counted once for the whole job."""
    monitor_interval: float = 0.1
    """Seconds between two looks at the workers, at most; the agent learns of changes at once."""
    start_method: str = "spawn"
    """How a function starts: "spawn", "fork" or "forkserver". A program is always executed."""
    log_line_prefix_template: str | None = None
    """Prefix of tee'd lines; knows ${role_name}, ${local_rank} and ${rank}."""
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    """Configuration of metrics."""
    local_addr: str | None = None
    """Address of this node for workers elsewhere; None: it is found."""
    event_log_handler: str = "null"
    """Name of the handler that gets events."""
    numa_options: NumaOptions | None = None
    """Binds each worker to CPUs; None: no worker is bound."""
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    """Signals that stop the workers and end the launch with `SignalException`."""
    duplicate_stdout_filters: list[str] | None = None
    """Lines of tee'd output that contain one of these go to another file, too."""
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    """Every worker sees one GPU, as device 0, and gets LOCAL_RANK=0."""
    shutdown_timeout: int | None = None
    """Seconds between a stop signal and SIGKILL; None: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30."""
    preload: str | Sequence[str] = ()
    """Modules that one process imports, from which all workers are forked, such as "torch,numpy";
    or "auto": what the workers import. Only for functions with the start method "spawn"."""
    preload_call: str | Sequence[str] = ()
    """Functions that this process then calls, each as "pkg.mod:function"."""

    def __post_init__(self) -> None:
        """Fill in what depends on other fields and on the environment.

        Raises:
            ValueError: the shutdown timeout is negative, or its variable is no number.
        """
        self.rdzv_configs = dict(self.rdzv_configs or {})
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        else:
            self.rdzv_configs.setdefault("timeout", RDZV_TIMEOUT_S)
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        if self.shutdown_timeout is None:
            self.shutdown_timeout = _read_shutdown_timeout()
        elif isinstance(self.shutdown_timeout, Real) and self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout must not be negative: {self.shutdown_timeout}")


def _read_shutdown_timeout() -> int:
    text = os.environ.get(SHUTDOWN_TIMEOUT_ENV, str(SHUTDOWN_TIMEOUT_S))
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{SHUTDOWN_TIMEOUT_ENV} must be a number of seconds: {text!r}") from None
