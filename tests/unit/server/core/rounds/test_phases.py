"""The phases of a run: one table decides which may follow which, and the documentation shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.rounds.phases import TRANSITIONS, PhaseEvent, next_phase

ARCHITECTURE = Path(__file__).parents[5] / "docs" / "architecture.md"


def render_diagram() -> str:
    """Return the table as a text diagram, as the documentation holds it."""
    arrows = [
        f"{before.value:8} -- {event.value + ' ':-<8}> {after.value}"
        for (before, event), after in TRANSITIONS.items()
    ]
    return "\n".join(("```text", *arrows, "```"))


def job_in(phase: Phase) -> Job:
    return Job(JobId("job"), 1, JobSpec(), 0, phase)


def test_documentation_shows_the_table() -> None:
    """The diagram in docs/architecture.md is the one that the table gives."""
    assert render_diagram() in ARCHITECTURE.read_text()


@pytest.mark.parametrize("event", PhaseEvent)
@pytest.mark.parametrize("phase", Phase)
def test_only_listed_transitions_happen(phase: Phase, event: PhaseEvent) -> None:
    """A transition that the table lists gives its phase; any other is a broken invariant."""
    if (phase, event) in TRANSITIONS:
        assert TRANSITIONS[phase, event] is next_phase(job_in(phase), event)
        return
    with pytest.raises(BrokenInvariant, match=f"a {phase.value} run cannot {event.value}"):
        next_phase(job_in(phase), event)


def test_a_closed_run_stays_closed() -> None:
    """Every phase is reached, each but CLOSED has a way to the end, and CLOSED has no way out."""
    assert set(Phase) == {*TRANSITIONS.values()}
    assert set(Phase) - {Phase.CLOSED} == {
        phase for phase, event in TRANSITIONS if event is PhaseEvent.CLOSE
    }
    assert Phase.CLOSED not in {phase for phase, _ in TRANSITIONS}
