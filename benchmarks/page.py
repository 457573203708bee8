"""Draw every figure of the documents from benchmarks/results/: tables, sentences, the chart.

    python benchmarks/page.py            writes them
    python benchmarks/page.py --check    names the files that differ from the results

A document says where a figure belongs: between `<!-- figures: NAME -->` and `<!-- end -->`, on
separate lines for a table, within a line for a number. The names are in `FIGURES`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from charts.chart import draw
from harness.installed import REPOSITORY
from harness.results import FOLDER, Results, read_results
from harness.tables import format_number, median_of, render_origin, render_table

CHART = "docs/images/torchrun.svg"
DOCUMENTS = ("README.md", "docs/benchmarks.md", "docs/operations.md", "docs/relays.md")
RAW = "https://raw.githubusercontent.com/rallypoint-dev/rallypoint/main"
_BLOCK = re.compile(r"(<!-- figures: ([a-z-]+) -->)(\n?).*?\n?(<!-- end -->)", re.DOTALL)

LAUNCHERS = ("torchrun, quickest settings", "Rallypoint", "Rallypoint, `--preload torch`")
"""Rows of the benchmark of recoveries. One that was not measured yet is left out."""
IN_MAIN = "SIGKILL to all in main"
STARTED, BACK = "command to first all-reduce", "SIGKILL to first all-reduce"
MEMORY = "memory of launchers"


def read(name: str) -> Results:
    """Return the results of a benchmark; of recoveries, those of the launchers that there are."""
    results = read_results(FOLDER / f"{name}.json")
    if name == "recovery":
        results.cells = [cell for cell in results.cells if cell.row in LAUNCHERS]
    return results


def draw_section(name: str, *tables: str) -> str:
    """Return those tables of a benchmark that were measured, and where they are from."""
    results = read(name)
    measured = {cell.table for cell in results.cells}
    drawn = [render_table(results, table) for table in tables if table in measured]
    return "\n\n".join([*drawn, render_origin(results.origin)])


def draw_headline() -> str:
    """Return the table of the first page."""
    return render_table(read("recovery"), "recovery", columns=(IN_MAIN, BACK, STARTED, MEMORY))


def draw_chart() -> str:
    """Return the chart as an image with its figures as text."""
    back = (f"{name} {format_number(median)} s" for name, median in find_medians(BACK))
    text = f"A worker is killed, until training continues: {'; '.join(back)}"
    return f"![{text}]({RAW}/{CHART})"


def draw_svg() -> str:
    """Return the chart itself."""
    memory = "Memory beside the workers, both nodes: agents, coordinator or store, forkservers"
    titles = (
        ("A worker is killed: until the first all-reduce of all workers", "s", BACK),
        ("Start: from the command to the first all-reduce", "s", STARTED),
        (memory, "MB", MEMORY),
    )
    return draw([(title, unit, find_medians(column)) for title, unit, column in titles])


def find_medians(column: str) -> list[tuple[str, float]]:
    """Return a median of the recoveries for each launcher, as the chart names it."""
    results = read("recovery")
    rows = dict.fromkeys(cell.row for cell in results.cells)
    return [(row.replace("`", ""), median_of(results, "recovery", row, column)) for row in rows]


def draw_failures() -> str:
    """Return the table of failures: of Rallypoint and of a bare loop."""
    failures = read("failures")
    rows = [
        row for row in dict.fromkeys(one.row for one in failures.cells) if "torchrun" not in row
    ]
    table = render_table(failures, "failures", rows=rows)
    return f"{table}\n\n{render_origin(failures.origin)}"


def draw_size() -> str:
    """Return what a coordinator needs, by the number of nodes."""
    rounds = read("rounds")
    rows = [cell.row for cell in rounds.cells if cell.table == "rounds" and "on a" not in cell.row]
    columns = ("memory", "CPU when idle", "round again")
    return render_table(rounds, "rounds", rows=list(dict.fromkeys(rows)), columns=columns)


def draw_median(name: str, table: str, row: str, column: str) -> str:
    """Return one number."""
    return format_number(median_of(read(name), table, row, column))


AGENT = "agent of a 2-node job, with its helper"
RELAY = ("rounds", "one rack", "64 nodes, through a relay")
FIGURES: dict[str, Callable[[], str]] = {
    "agent-memory": partial(draw_median, "launch", "memory", AGENT, "memory"),
    "chart": draw_chart,
    "commands": partial(draw_section, "commands", "commands"),
    "coordinator-memory": partial(draw_median, "launch", "memory", "coordinator", "memory"),
    "failures": draw_failures,
    "headline": draw_headline,
    "journal": partial(draw_section, "journal", "journal"),
    "launch": partial(draw_section, "launch", "launch", "memory", "torch"),
    "recovery": partial(draw_section, "recovery", "recovery"),
    "relay-cpu": partial(draw_median, *RELAY, "CPU time of the relay for all of it"),
    "relay-memory": partial(draw_median, *RELAY, "memory of the relay"),
    "rounds": partial(draw_section, "rounds", "rounds", "one rack"),
    "size": draw_size,
}


def fill(text: str) -> str:
    """Return a document with its figures drawn again.

    Raises:
        KeyError: there is no such figure.
        LookupError: it was not measured.
    """

    def one(found: re.Match[str]) -> str:
        begin, name, line, end = found.groups()
        return f"{begin}{line}{FIGURES[name]()}{line}{end}"

    return _BLOCK.sub(one, text)


def draw_all() -> dict[Path, str]:
    """Return what each document, and the chart, should contain."""
    paths = [REPOSITORY / name for name in DOCUMENTS]
    drawn = {path: fill(path.read_text(encoding="utf-8")) for path in paths}
    drawn[REPOSITORY / CHART] = draw_svg()
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the figures of the documents.")
    parser.add_argument("--check", action="store_true", help="only name the files that differ")
    arguments = parser.parse_args()
    stale = {
        path: text
        for path, text in draw_all().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        print(path.relative_to(REPOSITORY))
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
