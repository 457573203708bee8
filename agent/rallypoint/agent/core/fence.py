"""When an agent that nobody answers kills its workers by itself.

With `--fence-after F` the workers are dead F after the agent sent the last heartbeat that was
acknowledged, the grace included: the stop begins a grace earlier. The time of sending counts and
not that of the answer, because the coordinator heard the heartbeat after it was sent and waits
longer than F from then. What runs is judged before an input is taken: if the agent itself stood
still for too long, the helper process has killed the workers, and their ends are no failures.
"""

from __future__ import annotations

from rallypoint.agent.core.model import STOPPING_STAGES, AgentState, Stage


def fence_ends_ms(state: AgentState) -> int | None:
    """Return when nothing may run here any more, or None for never."""
    if state.fence_ms == 0 or state.confirmed_ms is None:
        return None
    return state.confirmed_ms + state.fence_ms


def fence_falls_ms(state: AgentState) -> int | None:
    """Return when the workers have to be told to stop, or None when there are none to tell."""
    held, ends_ms = state.held, fence_ends_ms(state)
    if ends_ms is None or held is None:
        return None
    if held.stage in STOPPING_STAGES or held.stage is Stage.SUCCEEDED:
        return None
    return ends_ms - state.grace_ms


def may_start(state: AgentState, now_ms: int) -> bool:
    """Return whether workers that are started now would not have to be stopped at once.

    Before anything was confirmed they would: an agent that stood still between its Hello and the
    answer cannot know yet for how long.
    """
    ends_ms = fence_ends_ms(state)
    if ends_ms is None:
        return state.fence_ms == 0
    return now_ms < ends_ms - state.grace_ms
