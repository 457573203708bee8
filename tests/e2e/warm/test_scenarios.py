"""node-agent is a drop-in for torchrun with warm workers, too: see launching/test_torchrun.py.

Every restart finds standbys. The checks are those that torchrun itself passes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.scenarios import SCENARIOS
from support.torchrun.launchers import Launcher, Scenario, run_scenario
from support.tries.commit import choose_long

PROMPT_AGENT = str(Path(__file__).parents[2] / "support" / "warm" / "prompt_agent.py")
WARM = (sys.executable, PROMPT_AGENT, "--warm=json,logging")
RESTARTS = ("restarts", "logs_of_attempts", "restarts_used_up", "elastic_restart")
"""Scenarios whose later rounds must be warm; of the others, most have one round."""
PARTS = 6
"""One of so many others runs with `make test-long`: each has a cold twin, which always runs."""
EXCLUDED = ("underscores", "python_exec")
"""The first one has --no_python, which excludes --warm; a wrapper that PYTHON_EXEC names runs
before its round, see docs/warm.md."""
POSSIBLE = [
    one for one in SCENARIOS if one.name not in EXCLUDED and "--no-python" not in one.command
]


def find_mark(at: int, scenario: Scenario) -> pytest.MarkDecorator:
    """Return when a scenario runs: those with restarts with each run of the long tests."""
    if scenario.name in RESTARTS:
        return pytest.mark.long
    return choose_long("warm scenarios", at, PARTS)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(one, marks=find_mark(at, one), id=one.name) for at, one in enumerate(POSSIBLE)],
)
def test_scenario_with_warm_workers(scenario: Scenario, tmp_path: Path) -> None:
    """Error files, logs, exit codes and numbers of restarts are those of cold workers."""
    ran = run_scenario(scenario, Launcher.NODE_AGENT, tmp_path / "a", instead=WARM)
    print(ran.err)
    scenario.check(ran)

    if scenario.name in RESTARTS:
        assert re.search('"warm_started".*"workers": [1-9]', ran.err)
