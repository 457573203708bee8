"""Which host an endpoint names: torch's rule for who hosts the store of c10d. Pure.

Every node gets the same endpoint, and the one that it names starts the coordinator. A node that
takes itself for the host by mistake starts one that nothing uses, so the rule looks at addresses,
which are certain, before names.

Source: `_matches_machine_hostname` in torch/distributed/elastic/rendezvous/utils.py. Beyond it, an
address of any of this host's interfaces counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rallypoint.base.addresses import is_loopback


class Hosting(Struct, frozen=True, kw_only=True):
    """A coordinator that one of a job's nodes hosts."""

    endpoint: str
    """`host:port`, the same on every node."""
    is_chosen: bool | None
    """Whether this node hosts it, as far as its command line says so: by `is_host`, or by the rank
    of the node. None: the host does that the endpoint names."""
    unused_ms: int
    """How long the coordinator waits for a first node before it ends."""
    window_ms: int | None
    """How long the coordinator waits for rounds that it does not know; None: its default."""

    @property
    def host(self) -> str:
        """Return the host of the endpoint, without brackets."""
        return self.endpoint.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Return the port of the endpoint."""
        return int(self.endpoint.rpartition(":")[2])


class HostFacts(Struct, frozen=True, kw_only=True):
    """What is known about this host and the host of an endpoint."""

    name: str
    """Name of this host."""
    full_names: frozenset[str]
    """Canonical names that the resolver knows for it."""
    addresses: frozenset[str]
    """Addresses that its name resolves to."""
    named: frozenset[str]
    """Addresses that the endpoint's host resolves to."""
    own: frozenset[str]
    """Those of `named` that an interface of this host has."""


def find_shared_job_id(hosted_port: int | None, environment: Mapping[str, str]) -> str | None:
    """Return the name of a job that was given none, the same on all its nodes; None: there is none.

    It is not named after the endpoint: nodes may spell its host differently, such as with and
    without a domain, and would wait for each other in different jobs of the same coordinator.

    Args:
        hosted_port: of the coordinator that a node hosts; None: there is another coordinator.
        environment: may have Slurm's name.
    """
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if job:
        return f"slurm-{job}.{step or 0}"
    return None if hosted_port is None else f"port-{hosted_port}"


def names_this_host(host: str, facts: HostFacts) -> bool:
    """Return whether the host of an endpoint is this one."""
    if is_loopback(host) or any(is_loopback(address) for address in facts.named):
        return True
    if facts.own:
        return True
    if host == facts.name or host in facts.full_names:
        return True
    shared = facts.addresses & (facts.named | {host})
    # A loopback address is every host's own.
    return any(not is_loopback(address) for address in shared)
