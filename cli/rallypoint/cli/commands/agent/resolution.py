"""Which coordinator, which job and which address follow from the flags, and what to say of them.

Decided from values alone, without a look at the network. torchrun's names are taken for what they
mean: an endpoint is a coordinator, a rendezvous id is a job id, and a job of one node that is given
none of them needs no other.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.agent.address import is_loopback
from rallypoint.cli.agent_flags import rdzv_conf
from rallypoint.cli.agent_flags.rendezvous import OWN_BACKEND
from rallypoint.cli.flags import endpoint, how_given
from rallypoint.cli.notes import Note

TORCHRUN_PORT = 29_500
"""What torchrun takes for a --master-port that was not given."""


class Unresolvable(Exception):
    """The flags lead to no coordinator, or to no job; in words for a person."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What follows."""

    coordinator: str | None
    """host:port; None: one of this agent's own."""
    job_id: str
    """1 to 255 bytes."""
    address: str | None
    """What this node is called for workers elsewhere; None: to be found out."""
    master_port: int
    """What this node offers for rank 0's store in every round; 0: a new free port each time."""
    notes: tuple[Note, ...]
    """What a person should know of this, one for each matter."""


def resolve(
    args: argparse.Namespace, environment: Mapping[str, str], fresh: str, host: str
) -> Resolution:
    """Resolve the flags.

    Args:
        args: as the parser has read them.
        environment: where Slurm says which job this is, and an agent whose worker this is.
        fresh: a job id that nobody else has.
        host: name of this host.

    Raises:
        Unresolvable: if something is missing, with the flag that would help; if this is a worker
            of the very job that it would take part in.
    """
    notes: list[Note] = []
    coordinator = _find_coordinator(args, notes)
    job_id = _find_job_id(args, environment, fresh, host, notes)
    _refuse_own_job(coordinator, job_id, environment)
    address = args.local_addr or _find_address(args, coordinator, notes)
    if address is None and coordinator is None:
        address = "127.0.0.1"
    _note_backend(args, coordinator, notes)
    unheard = rdzv_conf.unheard(args.rdzv_conf)
    if unheard:
        notes.append(Note("rdzv_conf_keys_ignored", {"keys": unheard, "why": "no store is used"}))
    if "monitor_interval" in args.given:
        why = "nothing is polled: a worker's end is known at once"
        notes.append(Note("monitor_interval_ignored", {"why": why}))
    port = args.master_port if may_be_master(args) else 0
    return Resolution(coordinator, job_id, address, port, tuple(notes))


def find_launch_id(environment: Mapping[str, str], pid: int) -> str:
    """Return Slurm's job, step and restart count if this is the task that Slurm started, or "".

    A script may start agents one after the other: the second one is another launch, and must not
    be told how the first one ended.
    """
    if environment.get("SLURM_TASK_PID") != str(pid):
        return ""
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    restarts = environment.get("SLURM_RESTART_COUNT") or "0"
    return f"slurm-{job}.{step}.{restarts}" if job and step else ""


def is_alone(args: argparse.Namespace) -> bool:
    """Return whether no other node will ever take part."""
    return bool(args.standalone or args.nnodes[1] == 1)


def may_be_master(args: argparse.Namespace) -> bool:
    """Return whether this node may be the one that --master-port was meant for."""
    return is_alone(args) or args.node_rank in (None, 0)


def _find_coordinator(args: argparse.Namespace, notes: list[Note]) -> str | None:
    if args.standalone:
        return _find_standalone(args, notes)
    # A single node whose endpoint has any free port wants no more than to meet nobody.
    has_endpoint = args.rdzv_endpoint and not (is_alone(args) and args.rdzv_endpoint.endswith(":0"))
    if args.coordinator is not None:
        if has_endpoint and _parse_endpoint(args.rdzv_endpoint) != args.coordinator:
            fields = {"endpoint": args.rdzv_endpoint, "coordinator": args.coordinator}
            notes.append(Note("rdzv_endpoint_ignored", {**fields, "why": "--coordinator wins"}))
        return str(args.coordinator)
    if has_endpoint:
        found = _parse_endpoint(args.rdzv_endpoint)
        if found is None:
            name, text = how_given(args, "rdzv_endpoint"), args.rdzv_endpoint
            raise Unresolvable(
                f"{name}: {text!r} is not HOST:PORT of a coordinator; give --coordinator"
            )
        return found
    if not is_alone(args):
        raise Unresolvable("a job of several nodes needs a coordinator: give --coordinator HOST")
    notes.append(
        Note(
            "coordinator_of_its_own", {"why": "a single node that was given none"}, is_warning=False
        )
    )
    return None


def _find_standalone(args: argparse.Namespace, notes: list[Note]) -> str | None:
    """Return the coordinator of a single node that may have been given one as well."""
    if args.nnodes[0] > 1:
        raise Unresolvable(
            f"{how_given(args, 'standalone')} is for a single node: leave --nnodes away"
        )
    names = ("rdzv_backend", "rdzv_endpoint", "rdzv_id")
    given = [name for name in names if name in args.given]
    if given:
        flags = [how_given(args, name) for name in given]
        why = how_given(args, "standalone")
        notes.append(Note("rendezvous_flags_ignored", {"flags": flags, "why": why}))
    return None if args.coordinator is None else str(args.coordinator)


def _parse_endpoint(text: str) -> str | None:
    try:
        return endpoint(text)
    except argparse.ArgumentTypeError:
        return None


def _find_job_id(
    args: argparse.Namespace,
    environment: Mapping[str, str],
    fresh: str,
    host: str,
    notes: list[Note],
) -> str:
    """Return the name: the given one, a fresh one for a single node, or what all nodes are told."""
    rdzv_id = None if args.standalone else args.rdzv_id
    if args.job_id is not None:
        if rdzv_id not in (None, args.job_id):
            fields = {"rdzv_id": rdzv_id, "job_id": args.job_id}
            notes.append(Note("rdzv_id_ignored", {**fields, "why": "--job-id wins"}))
        return str(args.job_id)
    if rdzv_id is not None:
        return str(rdzv_id)
    if is_alone(args):
        return fresh
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if job:
        return f"slurm-{job}.{step or 0}"
    if args.master_addr:
        # Every host has a loopback address: as a name, it is that of all of them.
        master = host if is_loopback(_bare(args.master_addr)) else args.master_addr
        return f"{master}:{args.master_port or TORCHRUN_PORT}"
    raise Unresolvable("a job of several nodes needs a name: give every node the same --job-id")


def _refuse_own_job(coordinator: str | None, job_id: str, environment: Mapping[str, str]) -> None:
    """Refuse to take part in the job whose worker this is: each would wait for the other."""
    around = environment.get("RALLYPOINT_COORDINATOR"), environment.get("RALLYPOINT_JOB_ID")
    if coordinator is not None and around == (coordinator, job_id):
        raise Unresolvable(
            f"this is a worker of job {job_id} already: give what it launches another --job-id"
        )


def _find_address(
    args: argparse.Namespace, coordinator: str | None, notes: list[Note]
) -> str | None:
    """Return what --master-addr says of this node: its address if it is node 0, or that all share.

    Nodes that are given a loopback address, by a coordinator as near, are on one host, and none of
    them may have another. From elsewhere nobody reaches it, whatever was typed on node 0.
    """
    address = _bare(args.master_addr)
    if not address:
        return None
    if is_alone(args):
        return address
    if is_loopback(address) and not is_loopback(_bare(str(coordinator).rpartition(":")[0])):
        why = "other hosts cannot reach it, and the coordinator is on one"
        notes.append(Note("master_addr_ignored", {"master_addr": address, "why": why}))
        return None
    if args.node_rank == 0:
        return address
    if is_loopback(address):
        return "127.0.0.1"
    if args.node_rank is None:
        why = "nobody is node 0: give every node its --node-rank"
        notes.append(Note("master_addr_ignored", {"why": why}))
    return None


def _bare(address: str) -> str:
    return address.strip("[]")


def _note_backend(args: argparse.Namespace, coordinator: str | None, notes: list[Note]) -> None:
    if args.rdzv_backend != OWN_BACKEND and not args.standalone:
        fields = {"backend": args.rdzv_backend, "by": coordinator or "a coordinator of its own"}
        if coordinator is not None and args.coordinator is None:
            port = coordinator.rpartition(":")[2]
            fields["then"] = f"no agent hosts it: somebody runs coordinator --port {port} there"
        notes.append(Note("rdzv_backend_replaced", fields, is_warning=False))
