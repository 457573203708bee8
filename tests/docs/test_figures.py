"""The figures of the first page are those that were measured."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from support.docs.pages import REPOSITORY


def load_chart() -> ModuleType:
    """Return benchmarks/charts/chart.py, which is a script."""
    spec = importlib.util.spec_from_file_location(
        "chart", REPOSITORY / "benchmarks" / "charts" / "chart.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_chart_is_fresh() -> None:
    """The committed chart is what benchmarks/charts/chart.py draws; if not, run it."""
    chart = load_chart()

    assert chart.CHART.read_text() == chart.draw(chart.find_comparisons())


def test_readme_has_the_same_figures() -> None:
    """The table of the README has the figures of docs/benchmarks.md."""
    readme = (REPOSITORY / "README.md").read_text()
    for comparison in load_chart().find_comparisons():
        ours, theirs = (comparison.text(value) for value in (comparison.ours, comparison.theirs))

        assert f"| {ours} | {theirs} |" in readme
