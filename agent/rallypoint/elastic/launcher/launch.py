"""Launches the workers of this node, and returns what they return."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from types import NoneType
from typing import Any

from rallypoint.base.limits import COUNT_MAX, DURATION_MS_MAX
from rallypoint.elastic import events, metrics
from rallypoint.elastic.agents.local_agent import LocalElasticAgent
from rallypoint.elastic.errors import ChildFailedError, SignalException
from rallypoint.elastic.launcher.config import RDZV_TIMEOUT_S, LaunchConfig
from rallypoint.elastic.logs.logs_specs import DefaultLogsSpecs
from rallypoint.elastic.rendezvous import RendezvousParameters, get_rendezvous_handler
from rallypoint.elastic.rendezvous.hosting import find_job_id
from rallypoint.elastic.rendezvous.registry import BACKENDS, OWN_BACKEND
from rallypoint.elastic.values.worker_spec import WorkerSpec

logger = logging.getLogger("rallypoint.elastic")

START_METHODS = ("spawn", "fork", "forkserver")
SIGNALS_ENV = "TORCHELASTIC_SIGNALS_TO_HANDLE"

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
        """Launch the workers, and wait until the job has ended.

        Args:
            args: arguments of the entry point.

        Returns:
            What the workers of this node returned, by global rank; None for a program. Empty if the
            job did without this node: it was a spare until the end, or was drained.

        Raises:
            ChildFailedError: a worker has failed, and no restart is left.
            SignalException: a signal has ended the launch, and the workers before.
            RendezvousError: this node could not take part to the end.
            ValueError: the configuration is wrong.
        """
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
        What the workers of this node returned, by global rank; None for a program.

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
    agent = _LaunchedAgent(config, spec)
    metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
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
            from rallypoint.elastic.rendezvous.coordinated import find_coordinator

            shared = find_job_id(find_coordinator(parameters), parameters.backend)
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
    for name in ("preload", "preload_call"):
        if value := getattr(config, name):
            options[name] = value
    return options


class _LaunchedAgent(LocalElasticAgent):
    """A local agent with the signals of a configuration."""

    def __init__(self, config: LaunchConfig, spec: WorkerSpec) -> None:
        super().__init__(
            spec,
            config.logs_specs or DefaultLogsSpecs(),
            config.start_method,
            log_line_prefix_template=config.log_line_prefix_template,
            shutdown_timeout=config.shutdown_timeout or 0,
        )
        self._signals_to_handle = config.signals_to_handle


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
    if config.start_method not in START_METHODS:
        known = ", ".join(START_METHODS)
        raise ValueError(f"start_method {config.start_method!r} is unknown; known: {known}")
    if config.event_log_handler not in (known_handlers := events.list_handlers()):
        names = ", ".join(sorted(known_handlers))
        raise ValueError(
            f"event_log_handler {config.event_log_handler!r} is unknown; known: {names}"
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


__all__ = ["ChildFailedError", "LaunchConfig", "SignalException", "elastic_launch", "launch_agent"]
