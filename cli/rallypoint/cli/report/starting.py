"""How to start the coordinators that an agent was given."""

from __future__ import annotations


def describe_start(coordinators: str) -> str:
    """Return how to start what listens at host:port, or at one of several."""
    port = coordinators.partition(",")[0].rpartition(":")[2]
    if "," in coordinators:
        return f"start one of them: rallypoint coordinator --port {port} --state etcd://…"
    return f"start one there: rallypoint coordinator --port {port}"
