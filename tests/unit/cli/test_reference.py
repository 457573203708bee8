"""The references in the documentation are what the parsers and the contract say."""

from __future__ import annotations

from pathlib import Path

from rallypoint.cli import exit_codes
from rallypoint.cli.limits_reference import render_limits
from rallypoint.cli.reference import render_reference

FOLDER = Path(__file__).parents[3] / "docs" / "reference"


def test_reference_is_fresh() -> None:
    """If this fails: make flags."""
    assert (FOLDER / "flags.md").read_text(encoding="utf-8") == render_reference() + "\n"


def test_limits_are_fresh() -> None:
    """If this fails: make limits."""
    assert (FOLDER / "limits.md").read_text(encoding="utf-8") == render_limits() + "\n"


def test_every_exit_code_is_explained() -> None:
    """With its meaning, for --help and the documentation."""
    assert [code for code, _ in exit_codes.EXIT_CODES] == ["0", "1", "2", "70", "75", "93", "128+N"]
