"""The fence: when an agent without confirmed heartbeats kills its workers by itself.

With `--fence-after F` the workers are dead F after the agent sent the last heartbeat that was
confirmed. That includes the shutdown timeout, so the stop begins earlier by that time. The time of
sending counts, not of the answer: the coordinator received the heartbeat later, and waits longer
than F from then on. A step checks the fence before it applies its input. If the agent itself was
suspended for too long, the helper process has killed the workers, and their exits are not failures.
"""

from __future__ import annotations

from rallypoint.agent.core.held_round import Stage
from rallypoint.agent.core.state import AgentState


def fence_kill_ms(state: AgentState) -> int | None:
    """Return when every worker must be dead, or None for never."""
    if state.fence_ms == 0 or state.confirmed_ms is None:
        return None
    return state.confirmed_ms + state.fence_ms


def fence_stop_ms(state: AgentState) -> int | None:
    """Return when the workers must be signalled to stop, or None when there are none."""
    held, kill_ms = state.held, fence_kill_ms(state)
    if kill_ms is None or held is None:
        return None
    if held.is_stopping or held.stage is Stage.SUCCEEDED:
        return None
    return kill_ms - state.shutdown_timeout_ms


def may_start(state: AgentState, now_ms: int) -> bool:
    """Return whether workers may start without being stopped by the fence at once.

    Nothing starts before the first confirmation, because an agent that was suspended between its
    Hello and the answer does not know for how long.
    """
    kill_ms = fence_kill_ms(state)
    if kill_ms is None:
        return state.fence_ms == 0
    return now_ms < kill_ms - state.shutdown_timeout_ms
