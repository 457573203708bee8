"""What torchrun calls its flags: these alone may be shortened, to what torchrun would take."""

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
"""Those of torch 2.13. A flag of our own can never be shortened: what a beginning means would
change with every flag that we add."""
