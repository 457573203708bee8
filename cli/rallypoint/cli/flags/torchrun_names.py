"""The flags of torchrun. Only these may be shortened, to the prefixes that torchrun accepts."""

from __future__ import annotations

TORCHRUN_FLAGS = frozenset(
    {
        "--duplicate-stderr-filters",
        "--duplicate-stdout-filters",
        "--event-log-handler",
        "--help",
        "--local-addr",
        "--local-ranks-filter",
        "--log-dir",
        "--logs-specs",
        "--master-addr",
        "--master-port",
        "--max-restarts",
        "--module",
        "--monitor-interval",
        "--nnodes",
        "--no-python",
        "--node-rank",
        "--nproc-per-node",
        "--numa-binding",
        "--rdzv-backend",
        "--rdzv-conf",
        "--rdzv-endpoint",
        "--rdzv-id",
        "--redirects",
        "--role",
        "--run-path",
        "--shutdown-timeout",
        "--signals-to-handle",
        "--standalone",
        "--start-method",
        "--tee",
        "--virtual-local-rank",
    }
)
"""The flags of torch 2.13. Our own flags cannot be shortened, because every new flag could change
the meaning of a prefix."""
