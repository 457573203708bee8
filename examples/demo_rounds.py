"""The expected rounds of the demonstration, and their table. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from demo_processes import DemoFailed
from rallypoint.v1 import job_pb2, round_pb2
from rallypoint.wire.durations import to_ms


@dataclass(slots=True)
class Stint:
    """The training between two failures, from the output of rank 0.

    node_name: where rank 0 ran.
    world_size: number of workers, as in their environment.
    resumed_step: steps in the checkpoint; 0 without one.
    last_step: the last step that was reported.
    first_step_s: time of the first step, in seconds since the demonstration began; None until then.
    """

    node_name: str
    world_size: int
    resumed_step: int
    last_step: int
    first_step_s: float | None = None


@dataclass(frozen=True, slots=True)
class ExpectedRound:
    """An expected round. node_names: sorted."""

    reason: round_pb2.RoundReason.ValueType
    node_names: tuple[str, ...]
    world_size: int
    restart_count: int


def reason_words(reason: round_pb2.RoundReason.ValueType) -> str:
    """Return a reason in words: "worker failed"."""
    name = round_pb2.RoundReason.Name(reason).removeprefix("ROUND_REASON_")
    return name.lower().replace("_", " ")


def check_rounds(rounds: Sequence[job_pb2.RoundSummary], expected: Sequence[ExpectedRound]) -> None:
    """Compare the history of a job with the expected rounds.

    Raises:
        DemoFailed: at the first difference.
    """
    found = [
        ExpectedRound(
            round.begin_reason,
            tuple(sorted(round.node_names)),
            round.world_size,
            round.restart_count,
        )
        for round in rounds
    ]
    for round, actual, wanted in zip(rounds, found, expected, strict=False):
        if actual != wanted:
            text = f"round {round.number} should have {_describe(wanted)}, but has "
            raise DemoFailed(text + _describe(actual))
    if len(found) != len(expected):
        raise DemoFailed(f"expected {len(expected)} rounds, but there were {len(found)}")
    if rounds[-1].end_reason != round_pb2.ROUND_REASON_SUCCEEDED:
        raise DemoFailed(f"the last round ended because: {reason_words(rounds[-1].end_reason)}")


def _describe(round: ExpectedRound) -> str:
    return (
        f"reason '{reason_words(round.reason)}', nodes {', '.join(round.node_names)}, "
        f"{round.world_size} workers and {round.restart_count} restarts"
    )


def check_stints(
    stints: Sequence[Stint], rounds: Sequence[job_pb2.RoundSummary], steps_per_checkpoint: int
) -> None:
    """Check that every round trained and resumed from the last checkpoint of the round before.

    Raises:
        DemoFailed: when one did not.
    """
    if len(stints) != len(rounds):
        raise DemoFailed(f"{len(rounds)} rounds, but training was started {len(stints)} times")
    for stint, round in zip(stints, rounds, strict=True):
        if stint.first_step_s is None:
            raise DemoFailed(f"round {round.number} took no training step")
        if stint.world_size != round.world_size:
            text = f"{stint.world_size} workers trained, not {round.world_size}"
            raise DemoFailed(f"round {round.number}: {text}")
    for before, after in pairwise(stints):
        if after.resumed_step < before.last_step - steps_per_checkpoint:
            text = f"step {before.last_step} was reached, but step {after.resumed_step} resumed"
            raise DemoFailed(f"too much training was lost: {text}")


HEADINGS = ("round", "began because", "nodes", "workers", "restarts", "step", "run in", "train")
NUMBERS = frozenset({0, 3, 4, 5, 6, 7})
"""Columns that are aligned to the right."""


def render_table(
    rounds: Sequence[job_pb2.RoundSummary],
    stints: Sequence[Stint],
    trouble_s: Sequence[float | None],
    remarks: Mapping[int, str],
) -> str:
    """Return the rounds as a table of plain text, of at most 80 columns.

    Args:
        rounds: the history of the job.
        stints: one per round.
        trouble_s: per round, the time of the event that made it necessary, in seconds since the
            demonstration began; None for none.
        remarks: what else happened in a round, by its number.
    """
    rows: list[tuple[str, ...]] = [HEADINGS]
    for round, stint, since_s in zip(rounds, stints, trouble_s, strict=True):
        workers_s = None
        if round.HasField("recovered_after"):
            workers_s = to_ms(round.recovered_after) / 1000
        training_s = None
        if since_s is not None and stint.first_step_s is not None:
            training_s = stint.first_step_s - since_s
        rows.append(
            (
                str(round.number),
                reason_words(round.begin_reason),
                ", ".join(sorted(round.node_names)),
                str(round.world_size),
                str(round.restart_count),
                str(stint.resumed_step),
                "-" if workers_s is None else f"{workers_s:.2f} s",
                "-" if training_s is None else f"{training_s:.2f} s",
            )
        )
    return _render(rows, NUMBERS, remarks)


MARKS = ("detected", "told", "stopped", "swept", "sealed", "started", "imported")
LATER_MARKS = {"group": "process_group", "step": "first_step"}
"""Those with a shorter heading."""


def render_timelines(rounds: Sequence[job_pb2.RoundSummary]) -> str:
    """Return when each round reached its marks, in seconds, as a table of at most 80 columns."""
    headings = ("round", *MARKS, *LATER_MARKS)
    rows: list[tuple[str, ...]] = [headings]
    for round in rounds:
        found = {field.name: value for field, value in round.timeline.ListFields()}
        marks = (LATER_MARKS.get(name, name) for name in headings[1:])
        known = (f"{to_ms(found[mark]) / 1000:.2f}" if mark in found else "-" for mark in marks)
        rows.append((str(round.number), *known))
    return _render(rows, frozenset(range(len(headings))), {})


def _render(
    rows: list[tuple[str, ...]], numbers: frozenset[int], remarks: Mapping[int, str]
) -> str:
    """Return rows, of which the first has the headings, as a table; `remarks` by first cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))
    lines: list[str] = []
    for row in rows:
        cells = (
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
        remark = remarks.get(int(row[0])) if row[0].isdecimal() else None
        lines += [f"{'':{widths[0]}}  {remark}"] if remark else []
    return "\n".join(lines)


def check_timelines(rounds: Sequence[job_pb2.RoundSummary], remarks: Mapping[int, str]) -> None:
    """Check that every round after the first is followed from its cause to its first step.

    A coordinator that was killed has forgotten which workers had imported and joined their group,
    if not all had: the marks of such a round, which has a remark, may be missing.

    Raises:
        DemoFailed: when a mark is missing.
    """
    for round in rounds[1:]:
        found = {field.name for field, _ in round.timeline.ListFields()}
        needed = {*MARKS[1:], *LATER_MARKS.values()}
        if round.number in remarks:
            needed -= {"imported", "process_group"}
        missing = needed - found
        if missing:
            text = ", ".join(sorted(missing))
            raise DemoFailed(f"the timeline of round {round.number} lacks {text}")
