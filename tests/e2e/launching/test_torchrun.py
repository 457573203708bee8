"""node-agent is a drop-in for torchrun: the same command lines, and what comes of them.

Every scenario runs through node-agent with nothing added and nothing started before. What torchrun
does was recorded, see `support/torchrun/records.py`; `make test-records` runs torchrun itself for
each record and compares, the long tests for one that is drawn from the commit. One check serves
both, so what torchrun does is measured and not remembered; where the two differ on purpose, the
scenario names both values and the reason.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from support.scenarios import SCENARIOS, launch
from support.torchrun import records
from support.torchrun.launchers import Launcher, Scenario, run_scenario
from support.tries.commit import choose_marks, draw

NAMES = [scenario.name for scenario in SCENARIOS]
SAMPLE = draw("records of torchrun", len(SCENARIOS))
"""The record that the long tests check. A record is stale with another version of torch and with
another digest of its scenario, so the others would find the same."""
LONG = ("binding_without_gpus", "workers_gpu_where_there_is_none", "workers_unknown")
"""The agent imports torch to count GPUs. `workers_auto` stays with the other tests."""


@pytest.mark.parametrize(
    ("scenario", "launcher"),
    [
        pytest.param(
            *(scenario, launcher),
            marks=pytest.mark.long if scenario.name in LONG else choose_marks("torchrun", at, 6, 2),
            id=f"{scenario.name}-{launcher.value}",
        )
        for at, scenario in enumerate(SCENARIOS)
        for launcher in Launcher
    ],
)
def test_scenario(scenario: Scenario, launcher: Launcher, tmp_path: Path) -> None:
    """The claim is the docstring of the scenario."""
    if launcher is Launcher.TORCHRUN:
        ran = records.replay(records.load(scenario), tmp_path)
    else:
        ran = run_scenario(scenario, launcher, tmp_path / "a")
    print(ran.err)  # shown when the check fails
    scenario.check(ran)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            *(scenario,),
            id=scenario.name,
            marks=pytest.mark.long if at == SAMPLE else pytest.mark.records,
        )
        for at, scenario in enumerate(SCENARIOS)
    ],
)
def test_torchrun_does_what_was_recorded(scenario: Scenario, tmp_path: Path) -> None:
    """torchrun itself passes the check, and does nothing else than its record says."""
    expected = records.load(scenario)
    ran = run_scenario(scenario, Launcher.TORCHRUN, tmp_path)
    print(ran.err)
    scenario.check(ran)
    found = records.make_record(scenario, ran)

    if len(found.told) != len(expected.told) and found.machine != expected.machine:
        pytest.skip("a worker for each processor, and the record has another number of processors")
    assert found.as_comparable() == expected.as_comparable()


def test_every_record_is_fresh() -> None:
    """Each scenario was recorded as it is now, with the torch that is installed; no other was."""
    stale = [why for scenario in SCENARIOS if (why := records.find_staleness(scenario))]

    assert stale == [], f"run {records.AGAIN}"
    assert records.find_unused(SCENARIOS) == []


def test_no_two_scenarios_have_one_name() -> None:
    """A record is found by its scenario's name."""
    assert len(set(NAMES)) == len(NAMES)


def test_every_flag_of_torchrun_is_in_a_scenario() -> None:
    """No flag is only listed: each is given in some command line, or by its variable."""
    used = set()
    for scenario in SCENARIOS:
        words = shlex.split(" ".join((*scenario.nodes, scenario.command)))
        names = [*words, *(f"--{name[4:].lower()}" for name in scenario.env if name[:4] == "PET_")]
        used |= {name.partition("=")[0].replace("_", "-") for name in names}

    assert [flag for flag in launch.FLAGS if flag not in used] == []
