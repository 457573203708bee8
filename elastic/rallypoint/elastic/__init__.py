"""The Python API: launch the workers of a job from a Python program, as TorchElastic does.

Names and meanings are those of `torch.distributed.elastic` and `torch.distributed.launcher`, so
that code written for them runs after its imports are changed. What a name needs is imported at its
first use. Nothing here imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.elastic.agents.elastic_agent import *  # noqa: F403
    from rallypoint.elastic.agents.local_agent import *  # noqa: F403
    from rallypoint.elastic.agents.simple_agent import *  # noqa: F403
    from rallypoint.elastic.errors import *  # noqa: F403
    from rallypoint.elastic.events import (
        Event as Event,
    )
    from rallypoint.elastic.events import (
        EventMetadataValue as EventMetadataValue,
    )
    from rallypoint.elastic.events import (
        EventSource as EventSource,
    )
    from rallypoint.elastic.events import (
        get_logging_handler as get_logging_handler,
    )
    from rallypoint.elastic.launcher import *  # noqa: F403
    from rallypoint.elastic.logs import *  # noqa: F403
    from rallypoint.elastic.metrics import *  # noqa: F403
    from rallypoint.elastic.node.registry import *  # noqa: F403
    from rallypoint.elastic.notebook import *  # noqa: F403
    from rallypoint.elastic.rendezvous import *  # noqa: F403
    from rallypoint.elastic.values import *  # noqa: F403

_ROOMS = {
    "agents.elastic_agent": "ElasticAgent",
    "agents.local_agent": "LocalElasticAgent TORCHELASTIC_ENABLE_FILE_TIMER"
    " TORCHELASTIC_TIMER_FILE",
    "agents.simple_agent": "SimpleElasticAgent",
    "errors": "ChildFailedError ErrorHandler ProcessFailure SignalException"
    " get_error_handler record",
    "events": "Event EventMetadataValue EventSource get_logging_handler",
    "launcher": "LaunchConfig elastic_launch launch_agent",
    "logs": "DefaultLogsSpecs LogsDest LogsSpecs Std to_map",
    "metrics": "ConsoleMetricHandler MetricData MetricHandler MetricStream MetricsConfig"
    " NullMetricHandler getStream prof put_metric",
    "notebook": "WorkerError launch",
    "node.registry": "RendezvousHandlerCreator RendezvousHandlerRegistry get_rendezvous_handler"
    " rendezvous_handler_registry",
    "rendezvous": "RendezvousClosedError RendezvousConnectionError RendezvousError"
    " RendezvousGracefulExitError RendezvousHandler RendezvousInfo RendezvousParameters"
    " RendezvousStateError RendezvousStoreInfo RendezvousTimeoutError",
    "values": "AffinityMode NumaOptions RunResult Worker WorkerGroup WorkerSpec WorkerState",
}
"""The names of each module below this one."""
_LATER = {name: room for room, names in _ROOMS.items() for name in names.split()}
__all__ = sorted(_LATER)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
