"""Metrics of a job for other programs: torch's `elastic.metrics`, without torch.

    from rallypoint.elastic import metrics

    metrics.configure(metrics.ConsoleMetricHandler(), group="torchelastic")  # the agents' metrics
    metrics.put_metric("loss", 3, "mine")  # dropped: no handler has this group

A metric is a number with a name and a group, which the handler of the group gets. One thing differs
from torch: a handler that raises does not fail the function that is measured. Its first failure is
logged.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar, overload

from rallypoint.base.log import get_logger
from rallypoint.embedded.python_log import use_python_log

log = get_logger()

GROUP = "torchelastic"
"""Group of the agents' metrics."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class MetricData(NamedTuple):
    """One value of a metric."""

    timestamp: float
    """Unix time in seconds."""
    group_name: str
    name: str
    value: int


class MetricsConfig:
    """Parameters of handlers, by name."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        """Take the parameters; None: none."""
        self.params = {} if params is None else params


class MetricHandler(ABC):
    """Sends the values of metrics somewhere."""

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Send a value; it is called by the thread that measures, and must not block for long."""


class ConsoleMetricHandler(MetricHandler):
    """Prints values to standard output."""

    def emit(self, metric_data: MetricData) -> None:
        """Print a value as torch's handler does."""
        stamp, group, name, value = metric_data
        print(f"[{stamp}][{group}]: {name}={value}")


class NullMetricHandler(MetricHandler):
    """Drops values."""

    def emit(self, metric_data: MetricData) -> None:
        """Drop a value."""


_handlers: dict[str | None, MetricHandler] = {}
"""By group; None: of all groups without one."""
_failed: set[type[MetricHandler]] = set()
"""Handlers whose failure was reported."""


class MetricStream:
    """A group of metrics and its handler."""

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        """Take the name of the group, and the handler of its values."""
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: int) -> None:
        """Send a value with the time of now; log the first failure of a handler."""
        now_s = time.time()  # noqa: TID251  # a time stamp that people read
        try:
            self.handler.emit(MetricData(now_s, self.group_name, metric_name, metric_value))
        except Exception as error:  # noqa: BLE001  # a stranger's code must not stop the job
            if type(self.handler) in _failed:
                return
            _failed.add(type(self.handler))
            use_python_log()
            log.warning(
                "metric_handler_failed",
                handler=type(self.handler).__name__,
                error=f"{type(error).__name__}: {error}",
                then="the value is lost and the job continues; later failures are not logged",
            )


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Let a handler get the metrics of a group; None: of all groups that have no handler."""
    _handlers[group] = handler


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Do nothing, as in torch: programs call `configure`."""


def getStream(group: str) -> MetricStream:
    """Return the stream of a group."""
    handler = _handlers.get(group) or _handlers.get(None) or NullMetricHandler()
    return MetricStream(group, handler)


def put_metric(metric_name: str, metric_value: int, metric_group: str = GROUP) -> None:
    """Send a value of a metric to the handler of its group."""
    getStream(metric_group).add_value(metric_name, metric_value)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Return the whole milliseconds since a Unix time in seconds."""
    return int((time.time() - start_time_in_seconds) * 1000)  # noqa: TID251  # torch's contract


@overload
def prof(fn: Callable[_P, _R], group: str = ...) -> Callable[_P, _R]: ...
@overload
def prof(fn: None = ..., group: str = ...) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...


def prof(
    fn: Callable[_P, _R] | None = None, group: str = GROUP
) -> Callable[_P, _R] | Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Measure the calls of a function: `@prof` or `@prof(group="mine")`.

    Each call sends `NAME.success` or `NAME.failure` with 1, then `NAME.duration.ms`. NAME is the
    qualified name of a method, or the function's with its module's last part: `Trainer.fit`,
    `train.main`.
    """
    if fn is None:
        return lambda one: prof(one, group)
    name, module = fn.__qualname__, fn.__module__
    if "." not in name and module:
        name = f"{module.split('.')[-1]}.{name}"

    @wraps(fn)
    def measured(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        start_ns = time.monotonic_ns()
        try:
            result = fn(*args, **kwargs)
            put_metric(f"{name}.success", 1, group)
        except Exception:
            put_metric(f"{name}.failure", 1, group)
            raise
        finally:
            duration_ms = (time.monotonic_ns() - start_ns) // 1_000_000
            put_metric(f"{name}.duration.ms", duration_ms, group)
        return result

    return measured
