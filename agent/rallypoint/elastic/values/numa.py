"""How workers are bound to CPUs, as LaunchConfig takes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AffinityMode(str, Enum):  # noqa: UP042  # it prints as torch's does
    """The CPUs of a worker, by the GPU with its local rank."""

    NODE = "node"
    """Those of the GPU's NUMA node."""
    SOCKET = "socket"
    """Those of all NUMA nodes of the GPU's socket."""
    EXCLUSIVE = "exclusive"
    """A share of the NUMA node that no other worker has."""
    CORE_COMPLEX = "core-complex"
    """One group of cores with a common cache."""


@dataclass(frozen=True)
class NumaOptions:
    """Binds each worker to CPUs near its GPU."""

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False
    """Start workers unbound, with a warning, where binding is impossible."""
