"""Launches the workers of this node, and returns what they return."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import NoneType
from typing import Any

from rallypoint.agent.core.leaving.signals import DEFAULT_SIGNAL_NAMES
from rallypoint.agent.torchelastic.variables import SIGNALS_ENV
from rallypoint.base.limits import COUNT_MAX, DURATION_MS_MAX
from rallypoint.elastic import events
from rallypoint.elastic.agents.local_agent import LocalElasticAgent
from rallypoint.elastic.errors import ChildFailedError
from rallypoint.elastic.logs import DefaultLogsSpecs, LogsSpecs
from rallypoint.elastic.node.coordinated import find_job_id
from rallypoint.elastic.node.registry import BACKENDS, OWN_BACKEND, get_rendezvous_handler
from rallypoint.elastic.rendezvous import RendezvousParameters
from rallypoint.elastic.values import NumaOptions, WorkerSpec, check_start_method

logger: logging.Logger = logging.getLogger("rallypoint.elastic")

SHUTDOWN_TIMEOUT_ENV = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_TIMEOUT_S = 30
RDZV_TIMEOUT_S = 900
"""torch's default for the time until enough nodes have joined."""

_KINDS: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("a whole number", Integral, ("min_nodes", "max_nodes", "nproc_per_node", "max_restarts")),
    ("a number of seconds", Real, ("monitor_interval",)),
    ("a number of seconds", (Real, NoneType), ("shutdown_timeout",)),
    ("a string", str, ("run_id", "signals_to_handle")),
    (
        "a string",
        (str, NoneType),
        ("role", "rdzv_endpoint", "rdzv_backend", "local_addr", "log_line_prefix_template"),
    ),
    (
        "a list of strings",
        (list, tuple, NoneType),
        ("duplicate_stdout_filters", "duplicate_stderr_filters"),
    ),
)
_OWN_FIELDS = {"backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"}
"""What a rendezvous gets from fields of the configuration."""


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
    signals_to_handle: str = DEFAULT_SIGNAL_NAMES
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
    evidence: str = "full"
    """How workers show what they do: "off", "signals" or "full"."""

    def __post_init__(self) -> None:
        """Fill in what depends on other fields and on the environment.

        Raises:
            ValueError: the shutdown timeout is negative, or its variable is not a number.
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


class elastic_launch:  # torch's name
    """Launches workers on this node, once per call.

        outputs = elastic_launch(config, train)(0.1, "data")  # a function and its arguments
        print(outputs[0])  # what rank 0 has returned

        elastic_launch(config, "python")("-u", "train.py")  # a program and its arguments

    The other nodes of the job call it, too, or run `node-agent`.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: Any = None,
    ) -> None:
        """Prepare a launch; nothing starts before the call.

        Args:
            config: how the workers are launched.
            entrypoint: a function, or a program that is executed.
            health_check_server: ignored, as in torch's public releases.
        """
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Launch the workers with these arguments: see `launch_agent`."""
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: Sequence[Any],
    health_check_server: Any = None,
) -> dict[int, Any]:
    """Launch the workers of this node, and wait until the job has ended.

    Args:
        config: how they are launched.
        entrypoint: a function, or a program that is executed.
        args: its arguments.
        health_check_server: ignored, as in torch's public releases.

    Returns:
        What the workers of this node returned, by global rank; None for a program. Empty if the job
        did without this node: it was a spare until the end, or was drained.

    Raises:
        ChildFailedError: a worker has failed, and no restart is left.
        SignalException: a signal has ended the launch, and the workers before.
        RendezvousError: this node could not take part to the end.
        ValueError: the configuration is wrong.
    """
    _check(config, entrypoint)
    name = find_entrypoint_name(entrypoint, args)
    os.environ[SIGNALS_ENV] = config.signals_to_handle
    parameters = RendezvousParameters(
        backend=config.rdzv_backend or OWN_BACKEND,
        endpoint=config.rdzv_endpoint or "",
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **_options(config),
    )
    if not config.run_id:
        config.run_id = parameters.run_id = _name_job(parameters)
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(args),
        rdzv_handler=get_rendezvous_handler(parameters),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )
    agent = LocalElasticAgent(
        spec,
        config.logs_specs or DefaultLogsSpecs(),
        config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        shutdown_timeout=config.shutdown_timeout or 0,
    )
    agent.signals_to_handle = config.signals_to_handle
    try:
        result = agent.run()
        events.record(agent.get_event_succeeded(), config.event_log_handler)
        if result.is_failed():
            raise ChildFailedError(name=name, failures=result.failures)
        return result.return_values
    except ChildFailedError:
        raise
    except Exception:
        events.record(agent.get_event_failed(), config.event_log_handler)
        raise
    finally:
        spec.rdzv_handler.shutdown()


def _name_job(parameters: RendezvousParameters) -> str:
    """Return the name of a job that was given none.

    Raises:
        ValueError: it needs several nodes, and they would draw different ones.
    """
    if parameters.max_nodes > 1:
        if parameters.backend in BACKENDS:
            shared = find_job_id(parameters)
            if shared is not None:
                return shared
        if parameters.min_nodes > 1:
            raise ValueError("a job of several nodes needs a name: give every node the same run_id")
        logger.warning("this node is alone in its job: give every node the same run_id")
    return str(uuid.uuid4().int)


def _options(config: LaunchConfig) -> dict[str, Any]:
    """Return the options of the job, without a timeout that no one has chosen.

    torch puts that one in every configuration, and its back end c10d ignores it.
    """
    options = dict(config.rdzv_configs)
    if options.get("timeout") == RDZV_TIMEOUT_S:
        del options["timeout"]
    for name in ("preload", "preload_call", "evidence"):
        if value := getattr(config, name):
            options[name] = value
    return options


def find_entrypoint_name(entrypoint: Callable[..., Any] | str | None, args: Sequence[Any]) -> str:
    """Return the name for reports: of the function, the program, or the interpreter's script."""
    if entrypoint is None:
        return ""
    if not isinstance(entrypoint, str):
        return getattr(entrypoint, "__name__", None) or repr(entrypoint)
    if entrypoint == sys.executable:
        return next((str(arg) for arg in args if not str(arg).startswith("-")), "")
    return entrypoint


def _check(config: LaunchConfig, entrypoint: Callable[..., Any] | str | None) -> None:
    """Refuse what no launch could mean.

    Raises:
        ValueError: with the field and what to do.
    """
    if not entrypoint:
        raise ValueError("there is no entrypoint: give a function or a program")
    if not isinstance(entrypoint, str) and not callable(entrypoint):
        raise ValueError(f"entrypoint {entrypoint!r} is neither a function nor a program")
    _check_kinds(config)
    _check_numbers(config)
    check_start_method(config.start_method)
    known = events.list_handlers()
    if config.event_log_handler not in known:
        raise ValueError(
            f"event_log_handler {config.event_log_handler!r} is unknown; known: {', '.join(known)}"
        )


def _check_numbers(config: LaunchConfig) -> None:
    """Refuse numbers out of their range."""
    if config.nproc_per_node < 1:
        raise ValueError(f"nproc_per_node must be at least 1, not {config.nproc_per_node}")
    if config.max_restarts < 0:
        raise ValueError(f"max_restarts must not be negative: {config.max_restarts}")
    if config.max_restarts > COUNT_MAX:
        raise ValueError(f"max_restarts must be at most {COUNT_MAX}, not {config.max_restarts}")
    if not config.monitor_interval > 0:
        raise ValueError(f"monitor_interval must be positive: {config.monitor_interval}")
    if config.shutdown_timeout is not None and config.shutdown_timeout > DURATION_MS_MAX / 1000:
        limit = DURATION_MS_MAX // 1000
        raise ValueError(
            f"shutdown_timeout must be at most {limit} s, not {config.shutdown_timeout}"
        )


def _check_kinds(config: LaunchConfig) -> None:
    """Refuse values of a wrong kind here, not deep in the agent."""
    for what, kind, names in _KINDS:
        for name in names:
            value = getattr(config, name)
            if not isinstance(value, kind):
                raise ValueError(f"{name} must be {what}, not {value!r}")
    if not callable(getattr(config.logs_specs, "reify", None)):
        raise ValueError(f"logs_specs must be a LogsSpecs, not {config.logs_specs!r}")
    for name in config.rdzv_configs:
        if not isinstance(name, str):
            raise ValueError(f"the names in rdzv_configs must be strings, not {name!r}")
        if name in _OWN_FIELDS:
            raise ValueError(f"rdzv_configs[{name!r}]: set the field of LaunchConfig instead")
