"""node-agent is a drop-in for torchrun with --preload, too: see launching/test_torchrun.py.

Every worker is forked, wherever its output goes. The checks are those that torchrun itself passes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.processes.commands import NODE_AGENT
from support.scenarios import SCENARIOS
from support.torchrun.launchers import Launcher, Scenario, run_scenario
from support.tries.commit import choose_long

PRELOAD = (NODE_AGENT, "--preload=json,logging")
RESTARTS = ("restarts", "logs_of_attempts", "restarts_used_up", "elastic_restart")
"""Scenarios with several rounds; most of the others have one."""
PARTS = 6
"""One of so many others runs with `make test-long`: each has a cold twin, which always runs."""
EXCLUDED = ("underscores", "python_exec")
"""The first one has --no_python, which excludes --preload; a wrapper that PYTHON_EXEC names runs
once, see docs/preload.md."""
POSSIBLE = [
    one for one in SCENARIOS if one.name not in EXCLUDED and "--no-python" not in one.command
]


def find_mark(at: int, scenario: Scenario) -> pytest.MarkDecorator:
    """Return when a scenario runs: those with restarts with each run of the long tests."""
    if scenario.name in RESTARTS:
        return pytest.mark.long
    return choose_long("preloaded scenarios", at, PARTS)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(one, marks=find_mark(at, one), id=one.name) for at, one in enumerate(POSSIBLE)],
)
def test_scenario_with_forked_workers(scenario: Scenario, tmp_path: Path) -> None:
    """Error files, logs, exit codes and numbers of restarts are those of cold workers."""
    ran = run_scenario(scenario, Launcher.NODE_AGENT, tmp_path / "a", instead=PRELOAD)
    print(ran.err)
    scenario.check(ran)

    assert "not_forked" not in ran.err
    if scenario.name in RESTARTS:
        assert '"preloaded"' in ran.err
