"""Decides which coordinator, job and address the flags mean, and what the user should know.

The decision uses values only, not the network. torchrun's flags keep their meaning: an endpoint is
where the coordinator is, a rendezvous id is a job id, and a single node without either runs on its
own.
"""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.agent.hosting.decision import Hosting, find_shared_job_id
from rallypoint.agent.launch.meeting_point import C10D_PORT, OPERATORS_VARIABLE, MeetingPoint
from rallypoint.agent.launch.notes import Note
from rallypoint.agent.launch.options import COMMAND_KEYS, list_key_notes
from rallypoint.base import worker_variables
from rallypoint.base.addresses import (
    first_host,
    is_loopback,
    parse_endpoint,
)
from rallypoint.base.values import BadValue
from rallypoint.cli.commands.agent.endpoint import STATIC_PORT, NoEndpoint, find_hosting
from rallypoint.cli.flags.agent.rendezvous import OWN_BACKEND
from rallypoint.cli.flags.flag import Values
from rallypoint.cli.flags.values import endpoints
from rallypoint.wire.coordinators import describe_start


class Unresolvable(Exception):
    """The flags name no coordinator or no job; with a text for the user."""


class Resolution(MeetingPoint, frozen=True):
    """The meaning of the flags."""

    address: str | None
    """Address of this node for workers elsewhere; None: look it up."""
    master_port: int
    """Port that this node offers for rank 0's store; 0: a free port in every round."""
    notes: tuple[Note, ...]
    """Notes for the user, one per topic."""


def resolve(args: Values, environment: Mapping[str, str], fresh: str, host: str) -> Resolution:
    """Resolve the flags.

    Args:
        args: the values of all flags.
        environment: names the Slurm job, and the agent that this process is a worker of.
        fresh: a job id that no other job has.
        host: name of this host.

    Raises:
        Unresolvable: if something is missing, with the flag that would help; or if this process
            is a worker of the job that it would join.
    """
    notes: list[Note] = []
    coordinator, hosting = _find_coordinator(args, environment, notes)
    job_id = _find_job_id(args, hosting, environment, fresh, host, notes)
    meeting = MeetingPoint(coordinator, hosting, job_id)
    if own := meeting.find_own_job(environment):
        raise Unresolvable(f"{own}: use another --job-id")
    address = args.local_addr or _find_address(args, coordinator, notes)
    _note_backend(args, coordinator, notes)
    notes += list_key_notes(args.rdzv_conf, COMMAND_KEYS)
    if "monitor_interval" in args.given:
        why = "nothing is polled: exits are noticed at once"
        notes.append(Note("monitor_interval_ignored", {"why": why}))
    port = meeting.find_master_port(args.master_port, args.node_rank, is_alone=is_alone(args))
    return Resolution(coordinator, hosting, job_id, address, port, tuple(notes))


def find_launch_id(environment: Mapping[str, str], pid: int) -> str:
    """Return Slurm's job, step and restart count if Slurm started this very process, or "".

    A script may start several agents in turn. Each is another launch, and must not report the
    outcome of an earlier one.
    """
    if environment.get("SLURM_TASK_PID") != str(pid):
        return ""
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    restarts = environment.get("SLURM_RESTART_COUNT") or "0"
    return f"slurm-{job}.{step}.{restarts}" if job and step else ""


def is_alone(args: Values) -> bool:
    """Return whether the job has a single node."""
    return bool(args.standalone or args.nnodes[1] == 1)


def _find_coordinator(
    args: Values, environment: Mapping[str, str], notes: list[Note]
) -> tuple[str | None, Hosting | None]:
    if args.standalone:
        return _find_standalone(args, notes), None
    if args.coordinator is not None:
        _note_other_endpoint(args, notes)
        return str(args.coordinator), None
    try:
        hosting = find_hosting(args)
    except NoEndpoint as error:
        raise Unresolvable(f"{error}; give --coordinator") from None
    if hosting is not None:
        return hosting.endpoint, hosting
    if "," in args.rdzv_endpoint:
        try:
            return endpoints(args.rdzv_endpoint), None
        except BadValue as error:
            name = args.source("rdzv_endpoint")
            raise Unresolvable(f"{name}: {error} of a coordinator; give --coordinator") from None
    if not is_alone(args):
        unread = environment.get(OPERATORS_VARIABLE, "")
        hint = f", or --coordinator {unread}: no agent reads {OPERATORS_VARIABLE}" if unread else ""
        raise Unresolvable(
            "several nodes need a place to meet: give every node the same --rdzv-endpoint HOST, "
            f"the name of one of them{hint}"
        )
    _note_unread_variable(environment, notes)
    return None, None


def _note_unread_variable(environment: Mapping[str, str], notes: list[Note]) -> None:
    """Note that a variable which chooses the coordinator of an operator's commands has no effect.

    A worker has that variable from its agent, and may start another job on its node alone.
    """
    value = environment.get(OPERATORS_VARIABLE, "")
    if value and worker_variables.JOB_ID not in environment:
        fields = {"coordinator": value, "why": "agents read --coordinator or PET_COORDINATOR"}
        notes.append(Note("coordinator_variable_ignored", fields))


def _note_other_endpoint(args: Values, notes: list[Note]) -> None:
    """Note that an endpoint which is not the coordinator has no effect."""
    text = args.rdzv_endpoint
    if not text or (is_alone(args) and text.endswith(":0")):
        return
    if args.coordinator not in (_parse_endpoints(text), parse_endpoint(text, C10D_PORT)):
        fields = {"endpoint": text, "coordinator": args.coordinator}
        notes.append(Note("rdzv_endpoint_ignored", {**fields, "why": "--coordinator wins"}))


def _find_standalone(args: Values, notes: list[Note]) -> str | None:
    """Return the coordinator for --standalone; None for a built-in one."""
    if args.nnodes[0] > 1:
        raise Unresolvable(f"{args.source('standalone')} is for a single node: drop --nnodes")
    names = ("rdzv_backend", "rdzv_endpoint", "rdzv_id")
    given = [name for name in names if name in args.given]
    if given:
        flags = [args.source(name) for name in given]
        why = args.source("standalone")
        notes.append(Note("rendezvous_flags_ignored", {"flags": flags, "why": why}))
    return None if args.coordinator is None else str(args.coordinator)


def _parse_endpoints(text: str) -> str | None:
    try:
        return endpoints(text)
    except BadValue:
        return None


def _find_job_id(
    args: Values,
    hosting: Hosting | None,
    environment: Mapping[str, str],
    fresh: str,
    host: str,
    notes: list[Note],
) -> str:
    """Return the given id, a fresh one for a single node, or one that all nodes agree on."""
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
    hosted_port = None if hosting is None else hosting.port
    if (shared := find_shared_job_id(hosted_port, environment)) is not None:
        return shared
    if args.master_addr:
        # A loopback address is the same on every host, so it would not distinguish jobs.
        master = host if is_loopback(_bare(args.master_addr)) else args.master_addr
        return f"{master}:{args.master_port or STATIC_PORT}"
    raise Unresolvable("a job of several nodes needs a name: give every node the same --job-id")


def _find_address(args: Values, coordinator: str | None, notes: list[Note]) -> str | None:
    """Return this node's address as far as --master-addr determines it; None: look it up.

    It is the address of node 0. A loopback address, together with a loopback coordinator, means
    that all nodes are on one host: they share it. Other hosts cannot reach a loopback address.
    """
    address = _bare(args.master_addr)
    if not address:
        return None
    if is_alone(args):
        return address
    if is_loopback(address) and not is_loopback(first_host(str(coordinator))):
        why = "a loopback address, but the coordinator is on another host"
        notes.append(Note("master_addr_ignored", {"master_addr": address, "why": why}))
        return None
    if args.node_rank == 0:
        return address
    if is_loopback(address):
        return "127.0.0.1"
    if args.node_rank is None:
        why = "no node is node 0; give each node a --node-rank"
        notes.append(Note("master_addr_ignored", {"why": why}))
    return None


def _bare(address: str) -> str:
    return address.strip("[]")


def _note_backend(args: Values, coordinator: str | None, notes: list[Note]) -> None:
    if args.rdzv_backend != OWN_BACKEND and not args.standalone:
        fields = {"backend": args.rdzv_backend, "by": coordinator or "built-in coordinator"}
        if coordinator is not None and "," in coordinator and args.coordinator is None:
            fields["hint"] = f"no agent hosts several; {describe_start(coordinator)}"
        notes.append(Note("rdzv_backend_replaced", fields, is_warning=False))
