"""Draw the chart of the README from the figures in docs/benchmarks.md.

    python benchmarks/charts/chart.py

Each figure stands in one row of a table there; this script only finds it. The README repeats the
figures in a table, and a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIGURES = DOCS / "benchmarks.md"
CHART = DOCS / "images" / "torchrun.svg"
WIDTH, BAR_X, BAR_WIDTH, BAR_HEIGHT = 820, 110, 560, 22
GROUP_HEIGHT, TOP = 92, 20
OURS, THEIRS = "#4051b5", "#9aa0a6"


@dataclass(frozen=True)
class Comparison:
    """A figure of both launchers; less is better."""

    title: str
    ours: float
    theirs: float
    unit: str

    def text(self, value: float) -> str:
        return f"{value:,.1f} {self.unit}"


def find_row(lines: Sequence[str], *cells: str) -> list[str]:
    """Return the cells of the only row that begins with these.

    Raises:
        LookupError: there is none, or more than one.
    """
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    found = [row for row in rows if row[: len(cells)] == list(cells)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {FIGURES.name} begin with {cells}")
    return found[0]


def find_number(cell: str) -> float:
    """Return the first number of a cell."""
    found = re.search(r"[\d.]+", cell)
    if found is None:
        raise LookupError(f"no number in {cell!r}")
    return float(found[0])


def find_comparisons() -> list[Comparison]:
    """Return what the chart compares."""
    lines = [line for line in FIGURES.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]

    def failure(until: str) -> tuple[float, float]:
        ours, theirs = (
            find_number(find_row(lines, "2", launcher, "worker SIGKILL", until)[4])
            for launcher in ("rallypoint", "torchrun")
        )
        return ours, theirs

    memory = find_row(lines, "memory (PSS) of an agent of a 2-node job, with its helper")
    return [
        Comparison(
            "A worker is killed: every other worker gets SIGTERM after",
            *failure("SIGTERM at all others"),
            "ms",
        ),
        Comparison(
            "A worker is killed: all workers run again after",
            *failure("all started again"),
            "ms",
        ),
        Comparison("Memory of an agent", find_number(memory[1]), find_number(memory[2]), "MB"),
    ]


def draw(comparisons: Sequence[Comparison]) -> str:
    """Return the chart; each pair of bars has its own scale."""
    height = TOP + GROUP_HEIGHT * len(comparisons) + 10
    title = "; ".join(
        f"{each.title}: Rallypoint {each.text(each.ours)}, torchrun {each.text(each.theirs)}"
        for each in comparisons
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" font-family="sans-serif" font-size="14">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for number, each in enumerate(comparisons):
        y = TOP + number * GROUP_HEIGHT
        parts.append(
            f'<text x="20" y="{y + 14}" font-weight="bold" fill="#202124">'
            f"{escape(each.title)}</text>"
        )
        for row, (name, value, colour) in enumerate(
            (("Rallypoint", each.ours, OURS), ("torchrun", each.theirs, THEIRS))
        ):
            top = y + 26 + row * (BAR_HEIGHT + 4)
            width = max(2.0, BAR_WIDTH * value / max(each.ours, each.theirs))
            parts += [
                f'<text x="20" y="{top + 16}" fill="#202124">{name}</text>',
                f'<rect x="{BAR_X}" y="{top}" width="{width:.1f}" height="{BAR_HEIGHT}" '
                f'rx="3" fill="{colour}"/>',
                f'<text x="{BAR_X + width + 8:.1f}" y="{top + 16}" fill="#202124">'
                f"{each.text(value)}</text>",
            ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(draw(find_comparisons()), encoding="utf-8")
    print(f"wrote {CHART}")


if __name__ == "__main__":
    main()
