"""A participant arrives at a barrier."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.barriers.ends import (
    break_if_hopeless,
    drop_barrier,
    forget_ends,
    note_due,
    release,
)
from rallypoint.server.core.barriers.words import describe, describe_expected
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import BarrierArrived
from rallypoint.server.core.messages.refusals import Limit, Refusal, RefusalKind, limit_reached
from rallypoint.server.core.model.barrier import (
    NAMES_MAX,
    OPEN_MAX,
    PAYLOADS_BYTES_MAX,
    RANK_WEIGHT,
    WEIGHT_MAX,
    Arrival,
    Barrier,
    BarrierKey,
    Expected,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.keyspace import BARE_WEIGHT_MAX, TOTAL_WEIGHT_MAX
from rallypoint.server.core.rounds.claims import check_claim
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.holding import (
    BARRIER_BYTES,
    size_of_arrival,
    size_of_counted,
    size_of_opening,
)


def receive_arrival(draft: Draft, arrive: inputs.Arrive) -> Refusal | None:
    """Count an arrival, once; release the barrier if it is the last one."""
    job = check_claim(draft, arrive.claim)
    if isinstance(job, Refusal):
        return job
    assert job.round is not None
    key = arrive.key
    barrier = draft.barrier(key) or Barrier(key, 0)
    if _is_known(draft, barrier, arrive):
        _hurry(draft, barrier, arrive)
        return None
    if 0 < arrive.epoch < job.since_epoch:
        # An earlier attempt may have reached a coordinator whose memory is gone.
        return Refusal(RefusalKind.BARRIER_FORGOTTEN, (("name", key.name),))
    expected = _resolve(draft, arrive, job)
    refusal = (
        expected if isinstance(expected, Refusal) else _check(draft, barrier, arrive, expected)
    )
    if isinstance(expected, Refusal) or refusal is not None:
        return refusal
    deadline_ms = draft.now_ms + arrive.timeout_ms
    is_first = not barrier.is_open
    if is_first:
        full = _make_room(draft, key)
        if full is not None:
            return full
        barrier = replace(
            barrier,
            generation=barrier.generation + 1,
            expected=expected,
            opened_ms=draft.now_ms,
            deadline_ms=deadline_ms,
            round=job.round.header.number,
        )
    arrival = Arrival(arrive.request_id, barrier.round, draft.now_ms, arrive.payload)
    full = _make_space(draft, job, barrier, arrive, arrival, is_first=is_first)
    if full is not None:
        return full
    barrier = replace(
        barrier,
        arrived=barrier.arrived + 1,
        deadline_ms=min(barrier.deadline_ms, deadline_ms),
        payload_bytes=barrier.payload_bytes + len(arrive.payload),
    )
    draft.put_barrier(barrier)
    draft.add_arrival(key, arrive.participant, arrival)
    opening = barrier.expected if is_first else None
    _record(draft, barrier, arrive, arrival, opening)
    note_due(draft, key.job_id, barrier.deadline_ms)
    if barrier.arrived == barrier.expected.count:
        release(draft, barrier)
    else:
        break_if_hopeless(draft, barrier, job, is_new=is_first)
    return None


def _record(
    draft: Draft,
    barrier: Barrier,
    arrive: inputs.Arrive,
    arrival: Arrival,
    opening: Expected | None,
) -> None:
    key, generation, deadline_ms = barrier.key, barrier.generation, barrier.deadline_ms
    draft.records.append(
        BarrierArrived(key, generation, opening, deadline_ms, arrive.participant, arrival)
    )


def _hurry(draft: Draft, barrier: Barrier, arrive: inputs.Arrive) -> None:
    """End the wait earlier if another attempt of an arrival has less time than the first."""
    deadline_ms = draft.now_ms + arrive.timeout_ms
    arrival = draft.arrival(barrier.key, arrive.participant)
    if arrival is None or arrival.request_id != arrive.request_id:
        return  # its generation has ended, and the next one may be open
    if deadline_ms >= barrier.deadline_ms:
        return
    barrier = replace(barrier, deadline_ms=deadline_ms)
    draft.put_barrier(barrier)
    _record(draft, barrier, arrive, arrival, None)
    note_due(draft, barrier.key.job_id, deadline_ms)


def _is_known(draft: Draft, barrier: Barrier, arrive: inputs.Arrive) -> bool:
    """Return whether this is another attempt of an arrival whose generation is known."""
    arrival = draft.arrival(barrier.key, arrive.participant)
    if arrival is not None and arrival.request_id == arrive.request_id:
        return True
    return any(ended.has(arrive.participant, arrive.request_id) for ended in barrier.ends)


def _resolve(draft: Draft, arrive: inputs.Arrive, job: Job) -> Expected | Refusal:
    """Return who is expected, with "everyone" as the count of the current round."""
    assert job.round is not None
    header, participant, expected = job.round.header, arrive.participant, arrive.expected
    if expected.all_of is ParticipantKind.RANK:
        expected = replace(expected, count=header.world_size)
    elif expected.all_of is ParticipantKind.NODE:
        expected = replace(expected, count=header.group_world_size)
    if (
        _is_outside(draft, participant, job)
        or (expected.participants and not expected.names(participant))
        or (expected.all_of is not None and participant.kind is not expected.all_of)
    ):
        facts = (("name", arrive.key.name), ("participant", describe(participant)))
        return Refusal(RefusalKind.NOT_EXPECTED, facts)
    return expected


def _is_outside(draft: Draft, participant: Participant, job: Job) -> bool:
    """Return whether the round has no such rank or node."""
    assert job.round is not None
    match participant.kind:
        case ParticipantKind.RANK:
            return participant.rank >= job.round.header.world_size
        case ParticipantKind.NODE:
            node = draft.holder(job.job_id, NodeName(participant.name))
            return node is None or not node.member
        case ParticipantKind.NAME:
            return False


def _check(
    draft: Draft, barrier: Barrier, arrive: inputs.Arrive, expected: Expected
) -> Refusal | None:
    """Return why the arrival cannot be counted, or None."""
    name, participant = arrive.key.name, describe(arrive.participant)
    generation = barrier.generation + (not barrier.is_open)
    request_id, counted = draft.state.counted.get(arrive.key, {}).get(arrive.participant, ("", 0))
    is_late = request_id == arrive.request_id or is_earlier(arrive.request_id, request_id)
    wanted = counted if is_late else arrive.generation
    if wanted and wanted != generation:
        facts = (
            ("name", name),
            ("expected", f"generation {generation}"),
            ("actual", f"generation {wanted}"),
        )
        return Refusal(RefusalKind.GENERATION_OVER, facts)
    if barrier.is_open:
        if draft.arrival(barrier.key, arrive.participant) is not None:
            facts_of_taken = (("name", name), ("participant", participant))
            return Refusal(RefusalKind.PARTICIPANT_ARRIVED, facts_of_taken)
        if barrier.expected != expected:
            differing = (
                ("name", name),
                ("expected", describe_expected(barrier.expected)),
                ("actual", describe_expected(expected)),
            )
            return Refusal(RefusalKind.BARRIER_MISMATCH, differing)
    if barrier.payload_bytes + len(arrive.payload) > PAYLOADS_BYTES_MAX:
        return limit_reached(Limit.PAYLOAD_BYTES, PAYLOADS_BYTES_MAX)
    return None


def is_earlier(request_id: str, latest: str) -> bool:
    """Return whether an arrival was made before the latest one that has counted.

    So it is one that was under way all the time, such as in a coordinator that was suspended, and
    whose caller has used another way since. Only ids of the form CALLER#NUMBER have an order.
    """
    caller, _, number = request_id.rpartition("#")
    latest_caller, _, latest_number = latest.rpartition("#")
    if not caller or caller != latest_caller:
        return False
    is_numbered = all(one.isascii() and one.isdecimal() for one in (number, latest_number))
    return is_numbered and (len(number), number) < (len(latest_number), latest_number)


def _make_room(draft: Draft, key: BarrierKey) -> Refusal | None:
    """Refuse one barrier too many at which someone waits; forget the oldest name for a new one."""
    known = draft.state.barriers.get(key.job_id, {})
    idle = draft.idle_barrier(key.job_id)
    if len(known) >= OPEN_MAX and sum(one.is_open for one in known.values()) >= OPEN_MAX:
        return limit_reached(Limit.OPEN_BARRIERS, OPEN_MAX)
    if key not in known and len(known) >= NAMES_MAX and idle is not None:
        drop_barrier(draft, idle)
    return None


def _make_space(
    draft: Draft,
    job: Job,
    barrier: Barrier,
    arrive: inputs.Arrive,
    arrival: Arrival,
    *,
    is_first: bool,
) -> Refusal | None:
    """Refuse an arrival for which there is no memory; before that, forget the job's oldest ends."""
    assert job.round is not None
    key, holding, together = barrier.key, draft.state.holding, draft.state.together
    added = size_of_arrival(arrive.participant, arrival)
    added += size_of_counted(arrive.participant, arrive.request_id)
    added += BARRIER_BYTES + size_of_opening(key, barrier.expected) if is_first else 0
    of_job_max = WEIGHT_MAX + RANK_WEIGHT * job.round.header.world_size
    is_bare = arrive.participant.kind is not ParticipantKind.NAME and not arrive.payload
    is_bare = is_bare and not (is_first and barrier.expected.participants)
    total_max = TOTAL_WEIGHT_MAX + BARE_WEIGHT_MAX * is_bare
    excess_of_job = holding.of_jobs.get(key.job_id, 0) + added - of_job_max
    excess = max(excess_of_job, together.weight + added - total_max)
    if excess <= 0:
        return None
    others = (one for one in draft.barriers_of(key.job_id) if one.ends and one.key != key)
    forgotten: list[Barrier] = []
    for other in sorted(others, key=lambda one: one.ends[-1].at_ms):
        forgotten.append(other)
        excess -= holding.ended_of(other.key)
        if excess <= 0:
            break
    if excess > 0:
        is_own = excess_of_job > 0
        limit, most = (Limit.BARRIER_BYTES, of_job_max) if is_own else (Limit.ALL_WEIGHT, total_max)
        return limit_reached(limit, most)
    for other in forgotten:
        forget_ends(draft, other)
    return None
