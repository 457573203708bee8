"""Every figure of the documents is drawn from results that say where they are from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
BENCHMARKS = REPOSITORY / "benchmarks"
RESULTS = sorted((BENCHMARKS / "results").glob("*.json"))
LOAD_MAX = 2.0
"""Of the machine before a benchmark; what ran then was measured, too."""
BLOCK = re.compile(r"<!-- figures: .*?<!-- end -->", re.DOTALL)


def test_documents_show_the_results() -> None:
    """Tables, sentences and the chart are what `make figures` draws; if not, run it."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "page.py"), "--check"], capture_output=True, text=True
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_table_of_figures_is_typed() -> None:
    """All tables of the page of benchmarks are drawn."""
    text = BLOCK.sub("", (REPOSITORY / "docs" / "benchmarks.md").read_text(encoding="utf-8"))

    assert [line for line in text.splitlines() if line.startswith("|")] == []


def test_results_say_where_they_are_from() -> None:
    """A wheel of a commit without changes, on a machine that did nothing else."""
    wrong = [path.stem for path in RESULTS if not is_sound(json.loads(path.read_text("utf-8")))]

    assert [] == wrong


def is_sound(results: dict[str, Any]) -> bool:
    """Return whether results may be shown: each cell has samples, and their origin is clean."""
    origin = results["origin"]
    return (
        origin["installed"] == "wheel"
        and not origin["is_changed"]
        and re.fullmatch("[0-9a-f]{40}", origin["commit"]) is not None
        and origin["load_before"] <= LOAD_MAX
        and all(cell["samples"] or cell["missing"] for cell in results["cells"])
    )
