"""`make nightly`: a stamp is green once every step has passed at its commit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.tries import nightly
from support.tries.nightly import STEPS, Outcome, Shell, StepFailed

COMMIT = "c0ffee" * 7
LOG = """\
=== skipped ===
      2  needs kubectl
      1  this machine has no PCI device
=== time ===
  1 s
"""


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nightly, "ROOT", tmp_path)
    monkeypatch.setattr(nightly, "FOLDER", tmp_path)
    monkeypatch.setattr(nightly, "STAMP", tmp_path / "stamp.json")


def ended(name: str, *, passed: bool = True) -> Outcome:
    return Outcome(name, passed, 1, 0.5, "", [])


def is_green() -> object:
    return json.loads(nightly.STAMP.read_text())["is_green"]


def test_stamp_is_green_once_all_have_passed() -> None:
    """A step that has not run, or has failed, is not green; another commit has no stamp."""
    outcomes = {name: ended(name) for name in STEPS}
    nightly.write_stamp(COMMIT, outcomes)
    assert is_green()
    assert nightly.read_stamp(COMMIT) == outcomes
    assert nightly.read_stamp("another") == {}

    nightly.write_stamp(COMMIT, outcomes | {"records": ended("records", passed=False)})
    assert not is_green()
    del outcomes["seeds"]
    nightly.write_stamp(COMMIT, outcomes)
    assert not is_green()


def test_step_that_fails_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its output is in its log. What its tests skipped is read from there."""

    def run(shell: Shell) -> str:
        shell.run("printf", "%s", LOG)
        shell.run("false")
        return ""

    monkeypatch.setattr(nightly, "STEPS", {"records": run})

    outcome = nightly.run_step("records")

    assert not outcome.passed
    assert outcome.note == "false exited with 1; see records.log"
    assert outcome.skipped == ["2 needs kubectl", "1 this machine has no PCI device"]
    assert LOG in (tmp_path / "records.log").read_text()


def test_missing_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A version that the machine need not have is no failure; another one is."""
    monkeypatch.setattr(nightly, "find_python", lambda _version: None)
    with (tmp_path / "log").open("w") as log:
        assert nightly.run_with("3.14", "")(Shell(log)) == "not run: no python3.14 here"
        with pytest.raises(StepFailed, match=r"no python3\.12 here: install it"):
            nightly.run_with("3.12", "2.4.1")(Shell(log))
