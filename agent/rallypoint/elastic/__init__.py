"""The Python API: launch the workers of a job from a Python program, as TorchElastic does.

Names and meanings are those of `torch.distributed.elastic` and `torch.distributed.launcher`, so
that code written for them runs after its imports are changed. What a name needs is imported at its
first use. Nothing here imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.elastic.agents.elastic_agent import ElasticAgent
    from rallypoint.elastic.agents.local_agent import LocalElasticAgent
    from rallypoint.elastic.agents.simple_agent import SimpleElasticAgent
    from rallypoint.elastic.agents.variables import (
        TORCHELASTIC_ENABLE_FILE_TIMER,
        TORCHELASTIC_TIMER_FILE,
    )
    from rallypoint.elastic.errors import (
        ChildFailedError,
        ErrorHandler,
        ProcessFailure,
        SignalException,
        get_error_handler,
        record,
    )
    from rallypoint.elastic.events import (
        Event,
        EventMetadataValue,
        EventSource,
        NodeState,
        RdzvEvent,
        construct_and_record_rdzv_event,
        get_logging_handler,
        record_rdzv_event,
    )
    from rallypoint.elastic.launcher.config import LaunchConfig
    from rallypoint.elastic.launcher.launch import elastic_launch, launch_agent
    from rallypoint.elastic.logs.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
    from rallypoint.elastic.logs.std import Std, to_map
    from rallypoint.elastic.metrics import (
        ConsoleMetricHandler,
        MetricData,
        MetricHandler,
        MetricsConfig,
        MetricStream,
        NullMetricHandler,
        getStream,
        prof,
        put_metric,
    )
    from rallypoint.elastic.notebook import WorkerError, launch
    from rallypoint.elastic.rendezvous import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousHandler,
        RendezvousHandlerCreator,
        RendezvousHandlerRegistry,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStateError,
        RendezvousStoreInfo,
        RendezvousTimeoutError,
        get_rendezvous_handler,
        rendezvous_handler_registry,
    )
    from rallypoint.elastic.values.numa import AffinityMode, NumaOptions
    from rallypoint.elastic.values.run_result import RunResult
    from rallypoint.elastic.values.worker_group import Worker, WorkerGroup, WorkerState
    from rallypoint.elastic.values.worker_spec import WorkerSpec

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_TIMER_FILE",
    "AffinityMode",
    "ChildFailedError",
    "ConsoleMetricHandler",
    "DefaultLogsSpecs",
    "ElasticAgent",
    "ErrorHandler",
    "Event",
    "EventMetadataValue",
    "EventSource",
    "LaunchConfig",
    "LocalElasticAgent",
    "LogsDest",
    "LogsSpecs",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NodeState",
    "NullMetricHandler",
    "NumaOptions",
    "ProcessFailure",
    "RdzvEvent",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "RunResult",
    "SignalException",
    "SimpleElasticAgent",
    "Std",
    "Worker",
    "WorkerError",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
    "construct_and_record_rdzv_event",
    "elastic_launch",
    "getStream",
    "get_error_handler",
    "get_logging_handler",
    "get_rendezvous_handler",
    "launch",
    "launch_agent",
    "prof",
    "put_metric",
    "record",
    "record_rdzv_event",
    "rendezvous_handler_registry",
    "to_map",
]

_ROOMS = {
    "errors": (
        "ChildFailedError",
        "ErrorHandler",
        "ProcessFailure",
        "SignalException",
        "get_error_handler",
        "record",
    ),
    "events": (
        "Event",
        "EventMetadataValue",
        "EventSource",
        "NodeState",
        "RdzvEvent",
        "construct_and_record_rdzv_event",
        "get_logging_handler",
        "record_rdzv_event",
    ),
    "agents.elastic_agent": ("ElasticAgent",),
    "agents.local_agent": ("LocalElasticAgent",),
    "agents.simple_agent": ("SimpleElasticAgent",),
    "agents.variables": ("TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"),
    "launcher.config": ("LaunchConfig",),
    "launcher.launch": ("elastic_launch", "launch_agent"),
    "logs.logs_specs": ("DefaultLogsSpecs", "LogsDest", "LogsSpecs"),
    "logs.std": ("Std", "to_map"),
    "metrics": (
        "ConsoleMetricHandler",
        "MetricData",
        "MetricHandler",
        "MetricStream",
        "MetricsConfig",
        "NullMetricHandler",
        "getStream",
        "prof",
        "put_metric",
    ),
    "notebook": ("WorkerError", "launch"),
    "rendezvous": (
        "RendezvousClosedError",
        "RendezvousConnectionError",
        "RendezvousError",
        "RendezvousGracefulExitError",
        "RendezvousHandler",
        "RendezvousHandlerCreator",
        "RendezvousHandlerRegistry",
        "RendezvousInfo",
        "RendezvousParameters",
        "RendezvousStateError",
        "RendezvousStoreInfo",
        "RendezvousTimeoutError",
        "get_rendezvous_handler",
        "rendezvous_handler_registry",
    ),
    "values.numa": ("AffinityMode", "NumaOptions"),
    "values.run_result": ("RunResult",),
    "values.worker_group": ("Worker", "WorkerGroup", "WorkerState"),
    "values.worker_spec": ("WorkerSpec",),
}
"""The names of each module below this one."""
_LATER = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
