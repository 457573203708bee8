"""Markdown from results: tables of medians with their spread, and where they are from."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime

from harness.results import Cell, Origin, Results

HEAD = "median (min-max)"


def render_table(
    results: Results,
    table: str,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> str:
    """Return a table; by default all rows and columns, in the order in which they were measured.

    Raises:
        LookupError: nothing was measured for a row or a column.
    """
    cells = [cell for cell in results.cells if cell.table == table]
    rows = list(dict.fromkeys(cell.row for cell in cells)) if rows is None else rows
    columns = list(dict.fromkeys(cell.column for cell in cells)) if columns is None else columns
    shown = {
        (row, column): find_cell(results, table, row, column)
        for row in rows
        for column in columns
        if any(cell.row == row and cell.column == column for cell in cells)
    }
    if {row for row, _ in shown} != {*rows} or {column for _, column in shown} != {*columns}:
        raise LookupError(f"{table}: not every row and column was measured")
    count = _count_of(shown.values())
    heads = [HEAD + _of(count)]
    lines = []
    for column in columns:
        found = [cell for (_, name), cell in shown.items() if name == column]
        of_column = 0 if count else _count_of(found)
        heads.append(", ".join(filter(None, [column, found[0].unit])) + _of(of_column))
    for row in rows:
        texts = [row]
        for column in columns:
            cell = shown.get((row, column))
            same = count or _count_of([one for (_, name), one in shown.items() if name == column])
            texts.append("" if cell is None else render_cell(cell, counted=not same))
        lines.append(texts)
    return "\n".join(_row(texts) for texts in (heads, ["---"] * len(heads), *lines))


def render_cell(cell: Cell, *, counted: bool = False) -> str:
    """Return `median (min-max)`, or what is known; `counted`: with the number of runs."""
    runs = len(cell.samples) + cell.missing
    if not cell.samples:
        return f"not in {cell.missing} of {runs}"
    text = render_spread(cell.samples)
    if cell.missing:
        return f"{text}; not in {cell.missing} of {runs}"
    return f"{text}, n = {runs}" if counted else text


def render_spread(values: Sequence[float]) -> str:
    """Return the median of one or more values, with the least and the greatest."""
    text = format_number(statistics.median(values))
    if len(values) == 1:
        return text
    return f"{text} ({format_number(min(values))}-{format_number(max(values))})"


def render_origin(origin: Origin) -> str:
    """Return a line: command, date, commit, machine, versions, load."""
    date = datetime.fromisoformat(origin.date)
    commit = origin.commit[:12] + (" with changes" if origin.is_changed else "")
    return (
        f"`{origin.command}`, {date.day} {date:%B %Y}, commit {commit}, {origin.processors} cores"
        f" ({origin.processor}), Linux {origin.kernel}, Python {origin.python}, torch"
        f" {origin.torch}, rallypoint {origin.rallypoint} ({origin.installed}); load"
        f" {origin.load_before:.1f} before, {origin.load_after:.1f} after."
    )


def render_results(results: Results) -> str:
    """Return everything: what a benchmark prints at its end."""
    tables = dict.fromkeys(cell.table for cell in results.cells)
    parts = [render_origin(results.origin)]
    parts += [f"{table}:\n\n{render_table(results, table)}" for table in tables]
    return "\n\n".join(parts)


def find_cell(results: Results, table: str, row: str, column: str) -> Cell:
    """Return a cell.

    Raises:
        LookupError: it was not measured.
    """
    for cell in results.cells:
        if (cell.table, cell.row, cell.column) == (table, row, column):
            return cell
    raise LookupError(f"{table}: {row}, {column}")


def median_of(results: Results, table: str, row: str, column: str) -> float:
    """Return the median of a cell.

    Raises:
        LookupError: it was not measured.
    """
    cell = find_cell(results, table, row, column)
    if not cell.samples:
        raise LookupError(f"{table}: {row}, {column} has no samples")
    return statistics.median(cell.samples)


def format_number(value: float) -> str:
    """Return three digits that count, or a whole number."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f}"


def _count_of(cells: Iterable[Cell]) -> int:
    """Return how many runs each of these has; 0 if they differ, or something was missing."""
    counts = {len(cell.samples) for cell in cells if not cell.missing}
    return counts.pop() if len(counts) == 1 else 0


def _of(count: int) -> str:
    return f", n = {count}" if count else ""


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"
