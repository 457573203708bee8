"""A step of the agent's core in the making: the state as it changes, and what has to be done."""

from __future__ import annotations

from dataclasses import replace

from rallypoint.agent.core import inputs
from rallypoint.agent.core.model import STOPPING_STAGES, AgentState, Ending, Held, Report, Stage

SIGTERM = 15


class Work:
    """A state in the making, with the effects so far."""

    def __init__(self, state: AgentState, now_ms: int) -> None:
        """Begin with `state` at `now_ms`."""
        self.state = state
        self.now_ms = now_ms
        self.effects: list[inputs.Effect] = []

    def change(self, **fields: object) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **fields)  # type: ignore[arg-type]  # replace checks names

    def hold(self, held: Held) -> None:
        """Change what is held."""
        self.state = replace(self.state, held=held)

    def do(self, effect: inputs.Effect) -> None:
        """Have something done."""
        self.effects.append(effect)

    def report(self, report: Report) -> None:
        """Tell the coordinator something, now or when there is one again."""
        self.state = replace(self.state, reports=(*self.state.reports, report))
        self.effects.append(inputs.SendReports())


def all_ended(held: Held) -> bool:
    """Return whether every worker of the held round has ended."""
    return all(worker.exit is not None for worker in held.workers)


def end(work: Work, ending: Ending) -> None:
    """Be on the way out from here on; of several endings the first counts."""
    if work.state.ending is None:
        work.change(ending=ending)


def stop(work: Work, grace_ms: int, signum: int = SIGTERM) -> None:
    """Begin to stop the held round, once."""
    held = work.state.held
    assert held is not None
    if held.stage in STOPPING_STAGES:
        return
    kill_ms = work.now_ms + grace_ms
    first_ms = work.now_ms if held.signalled_ms is None else held.signalled_ms
    work.hold(replace(held, stage=Stage.STOPPING, kill_ms=kill_ms, signalled_ms=first_ms))
    if not all_ended(held):
        work.do(inputs.SignalWorkers(signum))
