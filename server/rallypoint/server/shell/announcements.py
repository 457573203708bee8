"""Writes what happens to jobs into the log.

A host that begins one job after the other could fill the disk: a job has some ten lines, and names
in them may be long. So only so many runs a minute that one host opens have lines. All others have
none, from their first to their last; their events are kept like those of any job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rallypoint.base.log import get_logger
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Effect, JobChanged
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State

log = get_logger()

_WARNINGS = frozenset({"other_arguments_found", "fence_too_short"})
"""Events that are probably a mistake of a person."""


class Announcements:
    """The jobs that have no lines."""

    def __init__(self, state: State, may_open: Callable[[inputs.Input], bool]) -> None:
        """Begin with lines for every job.

        Args:
            state: the live state, for the jobs that exist.
            may_open: whether there is room in the log for the run that a Hello opens.
        """
        self._state = state
        self._may_open = may_open
        self._without_lines: set[JobId] = set()

    def note(self, input: inputs.Input, effects: Sequence[Effect]) -> None:
        """Decide whether a run has lines that an input has opened, if it has."""
        if not isinstance(input, inputs.Hello):
            return
        for effect in effects:
            if isinstance(effect, JobChanged) and effect.reason == "run_opened":
                if self._may_open(input):
                    self._without_lines.discard(effect.job_id)
                else:
                    self._without_lines.add(effect.job_id)

    def write(self, effects: Sequence[Effect]) -> None:
        """Write a line for each change of a job with lines."""
        for effect in effects:
            if not isinstance(effect, JobChanged):
                continue
            if effect.job_id in self._without_lines:
                if effect.job_id not in self._state.jobs:  # its last change
                    self._without_lines.discard(effect.job_id)
                continue
            (log.warning if effect.reason in _WARNINGS else log.info)(
                effect.reason, **(dict(effect.facts) | {"job_id": effect.job_id})
            )
