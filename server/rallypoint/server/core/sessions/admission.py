"""Decides which Hellos of unknown sessions are refused.

An agent must not end another coordinator's round and must not join a run that is over. It must have
the job's spec and program, and a name and node rank that no attached node has. Nothing changes
here: `sessions` opens the run, replaces broken holders of a name or rank, and adds the node.
"""

from __future__ import annotations

from heapq import nsmallest

from msgspec.structs import replace

from rallypoint.base.addresses import is_loopback
from rallypoint.base.limits import NODES_PER_JOB_MAX
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Limit, Refusal, RefusalKind, limit_reached
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import JOBS_MAX, Job
from rallypoint.server.core.model.node import Identity, Node
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import HangAction, JobSpec
from rallypoint.server.core.sessions.programs import check_program
from rallypoint.server.core.sessions.reports import refuse_stale
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft

HEARD_MS = 1_500
"""A name or rank is refused if its holder was heard this recently: longer than between heartbeats.
Agents take a second such refusal as final, a little later than this."""
FORGOTTEN_PART = 64
"""When there is room for no other job, one in this many is forgotten, if so many are idle."""
_OPEN = 2
"""Place of open jobs that had a round, or were created, in the order of forgetting: the last."""


def check_owner(draft: Draft, hello: inputs.Hello) -> Refusal | None:
    """Refuse the round of another coordinator with a durable journal."""
    state = draft.state
    is_foreign = hello.coordinator_durable and hello.coordinator_id != state.coordinator_id
    if hello.held is None or not is_foreign:
        return None
    facts = (("coordinator_id", state.coordinator_id), ("owner_id", hello.coordinator_id))
    return Refusal(RefusalKind.FOREIGN_ROUND, facts)


def check_resume(node: Node, hello: inputs.Hello) -> Refusal | None:
    """Refuse a Hello that must not continue the session of a known node.

    Until something arrives after the first Welcome, that Welcome may have been lost with its token.
    So the session id is proof enough until then: only the agent knows it.
    """
    if hello.connection <= node.connection:
        return refuse_stale(RefusalKind.STALE_CONNECTION, node.connection, hello.connection)
    if node.is_heard and not hello.is_proven:
        return Refusal(RefusalKind.NOT_PROVEN)
    if hello.identity.job_id != node.job_id:  # its caller was let in for the job that it names
        return Refusal(RefusalKind.OTHER_JOB, (("job_id", hello.identity.job_id),))
    return None


def check_run(draft: Draft, hello: inputs.Hello) -> Refusal | None:
    """Refuse an agent of an earlier run, between two runs, or beyond a limit."""
    job = draft.job(hello.identity.job_id)
    if job is None:
        ended_run = draft.gone(hello.identity.job_id).ended_run
        if 0 < hello.run <= ended_run:  # it must not bring back what was deleted
            return refuse_stale(RefusalKind.OLD_RUN, ended_run, hello.run)
        if is_full(draft) and not has_idle(draft):
            return limit_reached(Limit.JOBS, JOBS_MAX)
        return None
    if hello.run and hello.run < job.run:
        return refuse_stale(RefusalKind.OLD_RUN, job.run, hello.run)
    tally = draft.tally(job.job_id)
    if tally.nodes >= NODES_PER_JOB_MAX:
        return limit_reached(Limit.NODES_PER_JOB, NODES_PER_JOB_MAX)
    if job.phase is Phase.CLOSED and not belongs_to(job, hello) and tally.nodes > 0:
        return previous_run_ending(job)
    if is_relaunch(draft, job, hello) and not _is_given_up(draft, job):
        return previous_run_ending(job)
    return None


def is_relaunch(draft: Draft, job: Job, hello: inputs.Hello) -> bool:
    """Return whether a new agent with another spec comes to an open run that has lost all agents.

    They were killed, and the job is started again with other flags. No operator has asked for the
    specification of the open run.
    """
    if job.phase is Phase.CLOSED or awaits_first_agent(job) or job.updated:
        return False
    if hello.run or hello.held is not None or _agrees(job, hello.identity.spec):
        return False
    return not any(node.attached for node in draft.nodes_of(job.job_id))


def _is_given_up(draft: Draft, job: Job) -> bool:
    """Return whether a run without agents may end for a new one.

    Agents that only lost their connection are back within a lease.
    """
    if not _is_idle(draft, job) or draft.awaits_adoption(job.job_id) or job.empty_since_ms is None:
        return False
    return draft.now_ms - job.empty_since_ms >= draft.state.lease_ms(job.spec)


def previous_run_ending(job: Job) -> Refusal:
    """Return the refusal of a next run while agents of the latest one are still there."""
    facts = (("job_id", job.job_id), ("run", job.run))
    return Refusal(RefusalKind.PREVIOUS_RUN_ENDING, facts)


def opens_run(draft: Draft, hello: inputs.Hello) -> bool:
    """Return whether an agent opens a run, if it is new and not refused."""
    job = draft.job(hello.identity.job_id)
    if job is None:
        return True
    if job.phase is Phase.CLOSED:
        return not belongs_to(job, hello)
    return is_relaunch(draft, job, hello)


def belongs_to(job: Job, hello: inputs.Hello) -> bool:
    """Return whether the agent is part of the job's latest run or of the launch of that run."""
    launch_id = hello.identity.launch_id
    return hello.run == job.run or bool(launch_id and launch_id == job.launch_id)


def awaits_first_agent(job: Job) -> bool:
    """Return whether an operator has created the run, and no agent has come yet."""
    return job.next_arrival == 0 and job.phase is Phase.FORMING


def is_full(draft: Draft) -> bool:
    """Return whether there is no room for another job in the process."""
    return draft.state.together.jobs >= JOBS_MAX


def has_idle(draft: Draft) -> bool:
    """Return whether a job can be forgotten to make room for another one."""
    return any(_is_idle(draft, job) for job in draft.state.jobs.values())


def find_idle(draft: Draft) -> tuple[Job, ...]:
    """Return the jobs to forget so that there is room for another one; none have sessions.

    First come jobs that never had a round, which have nothing to remember. Then the runs that ended
    first. To find them takes a look at every job, so there are several, and not every new job has
    to look. The nodes of an open job may return, and those of a created one may come: only if there
    are no others, the one that has been without a session for longest is forgotten.
    """
    idle = [job for job in draft.state.jobs.values() if _is_idle(draft, job)]
    done = [job for job in idle if _order_of_forgetting(job)[0] < _OPEN]
    count = max(1, JOBS_MAX // FORGOTTEN_PART) if done else 1
    return tuple(nsmallest(count, done or idle, key=_order_of_forgetting))


def _order_of_forgetting(job: Job) -> tuple[int, int, str]:
    if job.phase is Phase.CLOSED:
        return 1, job.closed_ms or 0, job.job_id
    is_kept = job.round_number > 0 or awaits_first_agent(job)
    return _OPEN if is_kept else 0, job.empty_since_ms or 0, job.job_id


def _is_idle(draft: Draft, job: Job) -> bool:
    """Return whether a job can be forgotten: without sessions, and not because of a fence.

    A fenced node may still run workers of an open job; its next round has to know.
    """
    if draft.tally(job.job_id).nodes > 0:
        return False
    if job.phase is Phase.CLOSED:
        return True
    is_fenced = any(fence.until_ms > draft.now_ms for fence in job.fences)
    is_known = job.unknown_past_until_ms <= draft.now_ms
    return job.phase is Phase.FORMING and is_known and not is_fenced


def check_identity(draft: Draft, job: Job, identity: Identity) -> Refusal | None:
    """Refuse a spec, program, address, name or node rank that does not fit the job."""
    if job.phase is not Phase.CLOSED and not _agrees(job, identity.spec):
        mismatch = spec_mismatch(job.job_id, job.spec, identity.spec)
        ends_ms = draft.deadline(DeadlineKind.ABANDON, job.job_id)
        if draft.tally(job.job_id).nodes > 0 or ends_ms is None:
            return mismatch
        return replace(mismatch, facts=(*mismatch.facts, ("kept_ms", ends_ms - draft.now_ms)))
    return (
        check_program(draft, identity)
        or _check_address(draft, identity)
        or _check_holders(draft, identity)
    )


def _agrees(job: Job, spec: JobSpec) -> bool:
    """Return whether an agent's specification is the job's, but for what operators changed."""
    if spec == job.spec:
        return True
    changed = {field: getattr(job.spec, field) for field in job.updated}
    return bool(changed) and replace(spec, **changed) == job.spec


def _check_address(draft: Draft, identity: Identity) -> Refusal | None:
    """Refuse an address that the job's other nodes cannot reach."""
    other = next(iter(draft.nodes_of(identity.job_id)), None)
    if other is None or is_loopback(other.identity.address) == is_loopback(identity.address):
        return None
    return address_mismatch(identity, other.name, other.identity.address)


def _check_holders(draft: Draft, identity: Identity) -> Refusal | None:
    """Refuse a name or node rank that an attached node holds: for good only if that is heard.

    A node that has fallen silent may be the one that this agent replaces, and its lease decides.
    One that the coordinator awaits since it started again may be well: a decision would be early.
    """
    job_id = identity.job_id
    if identity.name_explicit:
        holder = draft.holder(job_id, identity.name)
        if holder is not None and (holder.is_awaited or _is_silent(draft, holder)):
            return Refusal(RefusalKind.NOT_READY)
        if holder is not None and holder.attached:
            return name_in_use(identity)
    if identity.node_rank is not None:
        holder = draft.holder(job_id, identity.node_rank)
        if holder is not None and (holder.is_awaited or _is_silent(draft, holder)):
            return Refusal(RefusalKind.NOT_READY)
        if holder is not None and holder.attached:
            return node_rank_in_use(identity, holder.name)
    return None


def _is_silent(draft: Draft, node: Node) -> bool:
    """Return whether nothing has come from an attached node for longer than between heartbeats."""
    return node.attached and draft.state.silent_ms(node, draft.now_ms) > HEARD_MS


def spec_mismatch(job_id: JobId, expected: JobSpec, actual: JobSpec) -> Refusal:
    """Return the refusal of an agent whose spec is not the job's."""
    facts = (
        ("job_id", job_id),
        ("expected_nodes", _show_nodes(expected)),
        ("actual_nodes", _show_nodes(actual)),
    )
    differences = compare_specs(expected, actual)
    return Refusal(RefusalKind.SPEC_MISMATCH, facts, differences=differences)


def address_mismatch(identity: Identity, other_name: NodeName, other_address: str) -> Refusal:
    """Return the refusal of an agent whose address the other node cannot reach, or cannot be."""
    facts = (
        ("node_name", identity.name),
        ("address", identity.address),
        ("other_node_name", other_name),
        ("other_address", other_address),
    )
    return Refusal(RefusalKind.ADDRESS_MISMATCH, facts)


def name_in_use(identity: Identity) -> Refusal:
    """Return the refusal of an agent whose explicit name another node has."""
    facts = (("job_id", identity.job_id), ("node_name", identity.name))
    return Refusal(RefusalKind.NODE_NAME_IN_USE, facts)


def node_rank_in_use(identity: Identity, holder_name: NodeName) -> Refusal:
    """Return the refusal of an agent whose node rank another node has."""
    assert identity.node_rank is not None
    facts = (
        ("job_id", identity.job_id),
        ("node_rank", identity.node_rank),
        ("node_name", holder_name),
    )
    return Refusal(RefusalKind.NODE_RANK_IN_USE, facts)


def compare_specs(expected: JobSpec, actual: JobSpec) -> tuple[tuple[str, str, str], ...]:
    """Return (name, expected, actual) for every field that differs, in order of declaration.

    The names are those of the contract's JobSpec.
    """
    differences: list[tuple[str, str, str]] = []
    for field in JobSpec.__struct_fields__:
        ours, theirs = getattr(expected, field), getattr(actual, field)
        if ours != theirs:
            name = field.removesuffix("_ms")
            differences.append((name, _show(field, ours), _show(field, theirs)))
    return tuple(differences)


_NOT_GIVEN = ("heartbeat_interval_ms", "lease_ms")
"""Fields whose 0 means the coordinator's own value."""


def _show(name: str, value: int | tuple[int, ...] | HangAction) -> str:
    """Return a field's value as a person would write it."""
    if isinstance(value, HangAction):
        return value.value
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if not name.endswith("_ms"):
        return str(value)
    return "not given" if value == 0 and name in _NOT_GIVEN else f"{value / 1000:g} s"


def _show_nodes(spec: JobSpec) -> str:
    return f"{spec.min_nodes}:{spec.max_nodes}"
