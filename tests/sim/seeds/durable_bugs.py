"""Planted bugs in what a durable coordinator writes, and in how it starts again.

Most of them change what a process begins with. `RestoredIsWhole` and `ReplayIsMemory` would notice
each at once, so it is planted together with their blindness: others have to see what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

from msgspec.structs import replace

from rallypoint.server.core.memory import notes
from rallypoint.server.core.memory import replay as replaying
from rallypoint.server.core.memory import restore as restoring
from rallypoint.server.core.memory.replay import memory_of
from rallypoint.server.core.messages.records import EpochRaised, JobNoted, NodeNoted
from rallypoint.server.core.model.events import EventLog
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.node import Eligibility, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.codec.batches import Batch, decode_batch
from sim.durable import recovery
from sim.durable.disk import Disk
from sim.durable.rules import RestoredIsWhole
from sim.durable.writes import Writes
from sim.seeds.planting import Bug, Patch
from sim.world import turns
from sim.world import world as worlds

_BLIND: Patch = (RestoredIsWhole, "restored", lambda rule, before, after: None)


def _begin_with(change: Callable[[State], None], *, is_seen: bool = False) -> list[Patch]:
    """Change what a process begins with."""
    real = recovery.load

    def load(*how: Any) -> Any:
        past = real(*how)
        if past is None:
            return None
        change(past.state)
        return past if is_seen else changed(past, memory=memory_of(past.state))

    return [(worlds, "load", load), *(() if is_seen else (_BLIND,))]


def _change_jobs(state: State, change: Callable[[Any], Any]) -> None:
    state.jobs = {job_id: change(job) for job_id, job in state.jobs.items()}


def _change_nodes(state: State, change: Callable[[Any], Any]) -> None:
    state.nodes = {session: change(node) for session, node in state.nodes.items()}


# --- writing --------------------------------------------------------------------------------------


def _show_before_writing() -> list[Patch]:
    """Carry out what a turn has decided while it is being written."""
    real = Writes.lose

    def lose(writes: Writes, turn: Any) -> None:
        server = writes._server
        server.listeners.carry_out(turn.effects, turn.changed, turn.state)
        for stream in list(server._streams.values()):
            server._write(stream)
        real(writes, turn)

    return [(Writes, "lose", lose)]


def _replay_a_torn_batch() -> list[Patch]:
    """Replay what a crash has left of a batch."""
    tear, load = Disk.tear, Disk.load
    left: dict[int, list[Any]] = {}

    def keep(disk: Disk, records: Any, now_ms: int, unix_ms: int) -> None:
        left[id(disk)] = list(records[: max(1, len(records) // 2)])
        tear(disk, records, now_ms, unix_ms)

    def load_torn(disk: Disk) -> list[Batch]:
        is_torn, records = bool(disk.torn), left.pop(id(disk), [])
        batches = load(disk)
        if is_torn and batches:
            disk.append(records, batches[-1].now_ms, batches[-1].unix_ms)
            batches.append(decode_batch(disk.batches[-1]))
        return batches

    return [(Disk, "tear", keep), (Disk, "load", load_torn)]


def _forget_notes(kind: type[Any]) -> list[Patch]:
    """Write the records of a turn without these notes."""
    real = notes.note_changes

    def note_changes(*turn: Any) -> list[Any]:
        return [note for note in real(*turn) if not isinstance(note, kind)]

    return [(turns, "note_changes", note_changes)]


def _forget_the_last_batch() -> list[Patch]:
    """Load everything but what was written last, as a store does that is not synced."""
    real = Disk.load

    def load(disk: Disk) -> list[Batch]:
        batches = real(disk)
        if len(batches) > 2:
            disk.batches.pop()
            batches.pop()
        return batches

    return [(Disk, "load", load), _BLIND]


# --- starting again -------------------------------------------------------------------------------


def _use_the_epoch_again() -> list[Patch]:
    """Begin with the epoch of the process before."""
    real = recovery.load

    def load(*how: Any) -> Any:
        past = real(*how)
        if past is not None and past.contacts is not None:
            past.state.epoch = past.memory.epoch = how[-1].state.epoch
        return past

    return [(worlds, "load", load)]


def _begin_at_zero() -> list[Patch]:
    """Let journal time begin at 0 again."""
    real = recovery.load

    def load(*how: Any) -> Any:
        past = real(*how)
        return None if past is None else changed(past, origin_ms=0)

    return [(worlds, "load", load)]


def _await_no_one() -> list[Patch]:
    """Give sessions only the usual grace to return."""

    def hurry(state: State) -> None:
        for (kind, subject), at_ms in list(state.deadlines.items()):
            if kind is DeadlineKind.GRACE:
                broke_ms = state.nodes[SessionId(subject)].broke_ms or at_ms
                grace_ms = state.timing.reconnect_grace_ms
                state.deadlines.set((kind, subject), broke_ms + grace_ms)

    return _begin_with(hurry)


def _count_failures_again() -> list[Patch]:
    """Forget which workers have failed already."""
    return _begin_with(lambda state: _change_nodes(state, lambda node: replace(node, exits=())))


def _forget_history() -> list[Patch]:
    """Forget the rounds that have ended."""
    return _begin_with(lambda state: _change_jobs(state, lambda job: replace(job, history=())))


def _forget_restarts() -> list[Patch]:
    """Forget the restarts that were charged."""

    def forget(job: Any) -> Any:
        return replace(job, counts=replace(job.counts, restart_count=0))

    return _begin_with(lambda state: _change_jobs(state, forget))


def _forget_health() -> list[Patch]:
    """Forget cordons and quarantines."""

    def forget(state: State) -> None:
        _change_jobs(state, lambda job: replace(job, health=()))
        _change_nodes(state, lambda node: replace(node, eligibility=Eligibility.ELIGIBLE))

    return _begin_with(forget)


def _forget_requests() -> list[Patch]:
    """Forget which requests of operators were carried out."""
    return _begin_with(lambda state: _change_jobs(state, lambda job: replace(job, operations=())))


def _forget_fences() -> list[Patch]:
    """Forget nodes whose workers may still run."""
    return _begin_with(
        lambda state: _change_jobs(state, lambda job: replace(job, fences=())), is_seen=True
    )


def _forget_verdicts() -> list[Patch]:
    """Forget what has failed first."""
    return _begin_with(
        lambda state: _change_jobs(state, lambda job: replace(job, verdict=None)), is_seen=True
    )


def _forget_successes() -> list[Patch]:
    """Forget members that had succeeded."""

    def forget_gone(job: Any) -> Any:
        round = job.round
        return job if round is None else replace(job, round=replace(round, succeeded_gone=()))

    def forget_here(node: Any) -> Any:
        has_succeeded = node.state is NodeState.SUCCEEDED
        return replace(node, state=NodeState.STARTED) if has_succeeded else node

    def forget(state: State) -> None:
        _change_jobs(state, forget_gone)
        _change_nodes(state, forget_here)

    return _begin_with(forget, is_seen=True)


def _forget_ended_jobs() -> list[Patch]:
    """Forget jobs that have an outcome and no nodes."""

    def forget(state: State) -> None:
        for job_id, job in list(state.jobs.items()):
            if job.phase is Phase.CLOSED and not state.sessions.get(job_id):
                for known in (state.jobs, state.sessions, state.tallies):
                    known.pop(job_id, None)
                for kind in (
                    DeadlineKind.FORGET,
                    DeadlineKind.QUARANTINE_END,
                    DeadlineKind.BARRIER,
                ):
                    state.deadlines.set((kind, job_id), None)
                state.revisions.jobs.pop(job_id, None)
                state.barriers.pop(job_id, None)

    return _begin_with(forget)


def _forget_arrivals() -> list[Patch]:
    """Close barriers that were half full."""

    def forget(state: State) -> None:
        state.arrivals.clear()
        for barriers in state.barriers.values():
            for key, barrier in list(barriers.items()):
                if barrier.is_open:
                    del barriers[key]
        state.barriers = {job_id: held for job_id, held in state.barriers.items() if held}

    return _begin_with(forget, is_seen=True)


def _forget_releases() -> list[Patch]:
    """Forget which arrivals have counted at generations that have ended."""

    def forget(state: State) -> None:
        state.counted.clear()
        for barriers in state.barriers.values():
            for key, barrier in list(barriers.items()):
                barriers[key] = replace(barrier, ends=())

    return _begin_with(forget)


def _forget_writes() -> list[Patch]:
    """Forget which requests have changed keys."""

    def forget(state: State) -> None:
        for space in state.keys.values():
            space.requests.clear()
            space.request_ids.clear()
            space.requests_bytes = 0

    return _begin_with(forget)


def _leave_a_gap() -> list[Patch]:
    """Begin the log of events again, as a coordinator without memory does."""

    def forget(state: State) -> None:
        state.events = EventLog()
        state.events.begin(state.epoch)

    return _begin_with(forget)


def _resume_nothing() -> list[Patch]:
    """Note in the journal that others may have been at work."""

    def raised(epoch: int, resumed: bool, window_until_ms: int, at_ms: int) -> EpochRaised:
        return EpochRaised(epoch, window_until_ms=window_until_ms)

    return [(restoring, "EpochRaised", raised)]


def _answer_the_lost() -> list[Patch]:
    """Acknowledge heartbeats of nodes whose loss is being written."""
    return [(State, "is_current", lambda state, session, connection: True)]


def _believe_the_wall_clock() -> list[Patch]:
    """Let journal time advance by as much as the wall clock."""

    def resume_ms(last: Batch, unix_ms: int) -> int:
        return last.now_ms + max(1, unix_ms - last.unix_ms)

    return [(recovery, "resume_ms", resume_ms)]


def _await_anew() -> list[Patch]:
    """Begin the time for the return of a node again with every start."""

    def miss_nodes(memory: Any, at_ms: int) -> None:
        for of_job in memory.nodes.values():
            for session, node in of_job.items():
                of_job[session] = replace(node, missed_ms=at_ms)

    return [(restoring, "miss_nodes", miss_nodes), (replaying, "miss_nodes", miss_nodes)]


TAKEN = frozenset({"NothingIsTakenBack"})
WHOLE = frozenset({"RestoredIsWhole", "ReplayIsMemory"})

DURABLE_BUGS: dict[str, Bug] = {
    "show before writing": (
        _show_before_writing,
        frozenset({"NumberMeansOneRound", "OrdersAreTrue", "ExitsClean", "NumbersOnlyGrow"}),
    ),
    "answer the lost": (_answer_the_lost, frozenset({"FenceHolds"})),
    "believe the wall clock": (_believe_the_wall_clock, frozenset({"RestoredIsWhole"})),
    "await again with every start": (_await_anew, frozenset({"RestoredIsWhole"})),
    "replay a torn batch": (_replay_a_torn_batch, WHOLE),
    "forget the notes of jobs": (lambda: _forget_notes(JobNoted), WHOLE),
    "forget the notes of nodes": (lambda: _forget_notes(NodeNoted), WHOLE),
    "forget the last batch": (_forget_the_last_batch, TAKEN | {"EventsGoOn"}),
    "use an epoch again": (_use_the_epoch_again, WHOLE),
    "begin at zero": (_begin_at_zero, WHOLE),
    "await no one": (
        _await_no_one,
        frozenset({"CrashesCostNothing", "WorkersDoNotNotice", "OneRoundLives"}),
    ),
    "count failures again": (_count_failures_again, frozenset({"WorkersFailOnce"})),
    "forget history": (_forget_history, TAKEN),
    "forget restarts": (_forget_restarts, TAKEN | {"BudgetHolds", "OutcomeIsOne"}),
    "forget cordons": (_forget_health, TAKEN | {"SetAsideHolds"}),
    "forget what was requested": (_forget_requests, frozenset({"OperationsHold"})),
    "forget fences": (_forget_fences, WHOLE),
    "forget verdicts": (_forget_verdicts, WHOLE),
    "forget successes": (_forget_successes, WHOLE),
    "forget ended jobs": (_forget_ended_jobs, TAKEN | {"NumbersOnlyGrow"}),
    "forget half a barrier": (_forget_arrivals, WHOLE),
    "forget releases": (_forget_releases, frozenset({"BarriersHold"})),
    "forget what was written": (_forget_writes, frozenset({"KeysHold"})),
    "leave a gap in the events": (_leave_a_gap, frozenset({"EventsGoOn"})),
    "resume nothing": (_resume_nothing, WHOLE | {"EventsGoOn"}),
}
CRASHES = {"disk": "crash_before,crash_after", "disk_every_ms": "2000"}
DURABLE_OPTIONS: dict[str, dict[str, str]] = {
    **{name: CRASHES for name in DURABLE_BUGS},
    "show before writing": {"disk": "crash_before", "disk_every_ms": "1000"},
    "answer the lost": {
        "disk": "slow_loss",
        "disk_every_ms": "300",
        "kinds": "partition",
        "features": "fence",
        "every_ms": "1200",
        "ignores_term_percent": "100",
        "slow_percent": "0",
        "writer_ms_max": "200",
        "delay_ms_max": "60",
        "until_ms": "60000",
        "keys": "0",
        "meetings": "0",
        "operators": "0",
    },
    "replay a torn batch": {"disk": "crash_halfway", "disk_every_ms": "1000"},
    "forget what was requested": CRASHES | {"operators": "1"},
    "forget half a barrier": CRASHES | {"meetings": "1"},
    "forget releases": CRASHES | {"meetings": "1"},
    "forget what was written": CRASHES | {"keys": "1"},
    "forget successes": {
        "disk": "crash_after",
        "disk_every_ms": "3000",
        "features": "work_ends",
        "kinds": "",
    },
    "forget fences": CRASHES | {"features": "fence"},
}
"""What the seeds of a hunt do."""
