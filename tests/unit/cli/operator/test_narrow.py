"""What a narrow terminal shows of an event."""

from __future__ import annotations

import io

from rich.console import Console

from rallypoint.cli.operator.views.events import describe_event, hang
from rallypoint.v1 import event_service_pb2 as events_pb2


def test_a_wrapped_event_leaves_the_times_in_their_column() -> None:
    """So one sees where the next event begins."""
    event = events_pb2.Event(
        run=1, round=2, text="round 2 was sealed", round_sealed=events_pb2.RoundSealed()
    )
    event.time.FromSeconds(0)
    console = Console(file=io.StringIO(), width=60)
    console.print(hang(describe_event(event, has_job=False)))
    assert isinstance(console.file, io.StringIO)
    first, second = (line.rstrip() for line in console.file.getvalue().splitlines())

    assert first[4:].endswith("  run 1/2   round sealed        round 2")
    assert second == f"{'':21}was sealed"
