"""Values of a configuration that no launch could mean."""

from __future__ import annotations

import os

import pytest

from rallypoint.elastic import LaunchConfig, elastic_launch


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("nproc_per_node", "2", "nproc_per_node must be a whole number, not '2'"),
        ("min_nodes", None, "min_nodes must be a whole number, not None"),
        ("max_restarts", 1 << 40, "max_restarts must be at most"),
        ("monitor_interval", "1", "monitor_interval must be a number of seconds, not '1'"),
        ("run_id", 5, "run_id must be a string, not 5"),
        ("rdzv_endpoint", 5, "rdzv_endpoint must be a string, not 5"),
        ("rdzv_configs", {5: 5}, "the names in rdzv_configs must be strings, not 5"),
        ("rdzv_configs", {"min_nodes": 2}, "set the field of LaunchConfig instead"),
        ("log_line_prefix_template", 5, "log_line_prefix_template must be a string, not 5"),
        ("duplicate_stdout_filters", "x", "must be a list of strings, not 'x'"),
        ("shutdown_timeout", 1e12, "shutdown_timeout must be at most 2592000 s"),
        ("shutdown_timeout", "1", "shutdown_timeout must be a number of seconds, not '1'"),
        ("logs_specs", "x", "logs_specs must be a LogsSpecs, not 'x'"),
    ],
)
def test_values_of_a_wrong_kind(field: str, value: object, error: str) -> None:
    """They are refused by name before anything starts."""
    config = LaunchConfig(**{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1, field: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=error.replace("[", r"\[")):
        elastic_launch(config, os.getpid)()
