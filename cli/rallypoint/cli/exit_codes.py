"""The exit codes of `node-agent`, for --help and the documentation."""

from __future__ import annotations

from rallypoint.base.exit_codes import (
    EXIT_CANCELLED,
    EXIT_DENIED,
    EXIT_FAILED,
    EXIT_NO_REQUEUE,
    EXIT_SIGNAL_BASE,
    EXIT_SOFTWARE,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
)

EXIT_CODES = (
    ("0", "the job succeeded, or an operator drained this node"),
    (str(EXIT_FAILED), "the job failed"),
    (str(EXIT_USAGE), "bad usage, or the coordinator rejected this node"),
    (
        str(EXIT_SOFTWARE),
        "a bug ended the agent; the log has its traceback",
    ),
    (str(EXIT_UNREACHABLE), "no coordinator answered in time"),
    (str(EXIT_DENIED), "the coordinator does not accept this node's token or certificate"),
    (str(EXIT_NO_REQUEUE), "the job failed and must not be requeued"),
    (str(EXIT_CANCELLED), "an operator cancelled the job; it must not be requeued"),
    (f"{EXIT_SIGNAL_BASE}+N", "ended by signal N"),
)
"""Each code and its meaning."""
