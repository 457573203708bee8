"""What an agent does while no coordinator answers: how long it waits, and how it ends.

An agent that waits to begin gives up after the coordinator timeout. One whose workers have all
exited with 0 waits for the outcome of the job, and has a separate timeout for that. Running
workers are never stopped because the coordinator is away, except by a fence.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.agent.core.effects import LogOutcomeAwaited
from rallypoint.agent.core.held_round import HeldRound, Stage
from rallypoint.agent.core.reports import GoodbyeKind
from rallypoint.agent.core.state import AgentState, Ending
from rallypoint.agent.core.work import Work, end
from rallypoint.base.exit_codes import EXIT_UNREACHABLE

ALONE_MS = 10_000
"""How long a node that was alone in its round tries to report the success of the job."""


class Absence(Struct, frozen=True, kw_only=True):
    """No coordinator answers, and what the agent does about it."""

    why: str
    """Of the latest attempt."""
    left_ms: int | None
    """Until the agent gives up; None while workers run, or another reason keeps it from that."""
    timeout_ms: int
    """The coordinator timeout."""
    has_begun: bool
    """The agent has held a round."""
    was_reached: bool
    """A coordinator has welcomed the agent before."""
    is_answered: bool = False
    """A coordinator has answered the latest attempt, and `why` is its text."""


def find_absence(
    state: AgentState, why: str, now_ms: int, *, was_reached: bool, is_answered: bool
) -> Absence:
    """Return what the agent does while no coordinator answers, for reports."""
    due_ms = give_up_ms(state)
    return Absence(
        why=why,
        left_ms=None if due_ms is None else max(0, due_ms - now_ms),
        timeout_ms=state.coordinator_timeout_ms,
        has_begun=state.last_round > 0,
        was_reached=was_reached,
        is_answered=is_answered,
    )


def give_up_ms(state: AgentState) -> int | None:
    """Return when the agent stops waiting for its coordinator, or None while it need not wait.

    The time counts from the last end or failure of a worker if that came after the coordinator was
    lost. So a node that finishes or fails during a long outage still has time to report it.
    """
    if state.away_since_ms is None or state.ending is not None or not _is_idle(state):
        return None
    if state.port_wait is not None and state.held is None:
        return None  # the port is missing, not the coordinator: see `step`
    workers = () if state.held is None else state.held.workers
    ended_ms = (worker.outcome.at_ms for worker in workers if worker.outcome is not None)
    return max(state.away_since_ms, *ended_ms, 0) + _timeout_ms(state)


def _timeout_ms(state: AgentState) -> int:
    """Return how long the agent waits for a coordinator, by what it waits for.

    To begin: the coordinator timeout. For the outcome of the job: the outcome timeout. A node that
    ran the whole round alone knows the outcome, and waits only to report it.
    """
    if not _has_succeeded(state.held):
        return state.coordinator_timeout_ms
    return (
        min(state.outcome_timeout_ms, ALONE_MS) if _was_alone(state) else state.outcome_timeout_ms
    )


def _has_succeeded(held: HeldRound | None) -> bool:
    return held is not None and held.stage is Stage.SUCCEEDED


def _was_alone(state: AgentState) -> bool:
    return state.held is not None and state.held.order.header.group_world_size == 1


def _is_idle(state: AgentState) -> bool:
    """Return whether giving up loses nothing: no worker runs, or the round has failed."""
    held = state.held
    return held is None or not held.is_running or held.stage is Stage.FAILED


def log_awaited_outcome(work: Work) -> None:
    """Tell the user what is missing if the workers succeed while there is no coordinator."""
    state = work.state
    if _has_succeeded(state.held) and state.away_since_ms is not None and state.ending is None:
        work.do(LogOutcomeAwaited(_timeout_ms(state)))


def give_up_if_alone(work: Work) -> None:
    """End the agent if no coordinator answered for too long."""
    state, due_ms = work.state, give_up_ms(work.state)
    if due_ms is None or work.now_ms < due_ms:
        return
    text = f"no coordinator answered for {_timeout_ms(state) / 1000:g} s"
    end_undecided(work, EXIT_UNREACHABLE, text, GoodbyeKind.ERROR)


def end_undecided(work: Work, exit_code: int, why: str, kind: GoodbyeKind) -> None:
    """End the agent without an outcome of its job: none can tell it any more, or none will.

    Args:
        work: what the step does.
        exit_code: of the agent, unless its workers have succeeded.
        why: one line.
        kind: of the Goodbye.
    """
    if not _has_succeeded(work.state.held):
        end(work, Ending(exit_code, kind, why))
    elif _was_alone(work.state):
        end(work, Ending(0, GoodbyeKind.FINISHED, f"all workers exited with 0; {why}"))
    else:
        text = f"all workers here exited with 0, but the job's outcome is unknown: {why}"
        end(work, Ending(EXIT_UNREACHABLE, kind, text))
