"""Where a worker's token travels."""

from __future__ import annotations

WORKER_TOKEN_KEY = "rallypoint-worker-token"
"""Metadata of a call: the value of RALLYPOINT_WORKER_TOKEN."""
