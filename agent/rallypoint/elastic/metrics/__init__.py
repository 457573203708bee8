"""Metrics of a job for other programs: torch's `elastic.metrics`, without torch.

from rallypoint.elastic import metrics

metrics.configure(metrics.ConsoleMetricHandler(), group="torchelastic")  # the agents' metrics
metrics.put_metric("loss", 3, "mine")  # dropped: no handler has this group
"""

from rallypoint.elastic.metrics.api import (
    ConsoleMetricHandler,
    MetricData,
    MetricHandler,
    MetricsConfig,
    MetricStream,
    NullMetricHandler,
    configure,
    get_elapsed_time_ms,
    getStream,
    initialize_metrics,
    prof,
    profile,
    publish_metric,
    put_metric,
)

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]
