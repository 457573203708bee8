"""The stages of a held round: a table says which may follow which; the documentation shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from rallypoint.agent.core.held_round import (
    NEXT_STAGES,
    STOPPING_STAGES,
    HeldRound,
    IllegalStage,
    LocalWorker,
    Stage,
)
from support.core.orders import run_order

ARCHITECTURE = Path(__file__).parents[4] / "docs" / "architecture.md"


def render_diagram() -> str:
    """Return the table as a text diagram, as the documentation holds it."""
    arrows = [
        f"{before.value:9} --> {', '.join(after.value for after in following)}"
        for before, following in NEXT_STAGES.items()
        if following
    ]
    return "\n".join(("```text", *arrows, "```"))


def test_documentation_shows_the_table() -> None:
    """The diagram in docs/architecture.md is the one that the table gives."""
    assert render_diagram() in ARCHITECTURE.read_text()


@pytest.mark.parametrize("after", Stage)
@pytest.mark.parametrize("before", Stage)
def test_only_listed_stages_follow(before: Stage, after: Stage) -> None:
    """A stage that the table lists is entered; any other raises."""
    held = replace(HeldRound(run_order(), (LocalWorker(0),)), stage=before)
    if after in NEXT_STAGES[before]:
        assert after is held.moved(after).stage
        return
    with pytest.raises(IllegalStage, match=f"{after.value} cannot follow {before.value}"):
        held.moved(after)


def test_stop_is_final() -> None:
    """Every stage leads to a stop, and no stage of a stop leads back."""
    assert set(Stage) == set(NEXT_STAGES)
    for before, following in NEXT_STAGES.items():
        if before in STOPPING_STAGES:
            assert set(following) <= STOPPING_STAGES
        else:
            assert Stage.STOPPING in following
