"""node-agent is a drop-in for torchrun: the same command lines, and what comes of them.

Every scenario runs through torchrun, and through node-agent with `--coordinator` as the only
addition. One check serves both, so what torchrun does is measured here and not remembered; where
the two differ on purpose, the scenario names both values and the reason.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from support.commands import Command
from support.launchers import Launcher, Ran, Scenario, run_scenario
from support.scenarios import failures, groups, launch, output
from support.world import World

SCENARIOS = [
    scenario
    for module in (launch, groups, output, failures)
    for scenario in vars(module).values()
    if isinstance(scenario, Scenario)
]
AT_ONCE = min(8, max(2, len(os.sched_getaffinity(0))))
"""Runs side by side: torchrun spends a second and more on the import of torch."""
Runs = Mapping[tuple[str, Launcher], Future[Ran]]


@dataclass(frozen=True, slots=True)
class Case:
    """One test."""

    scenario: Scenario
    launcher: Launcher


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shared_world: World,
    shared_coordinator: Command,
) -> Iterator[Runs]:
    """All runs that the selected tests need, in their order, begun before they are asked for."""
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    params = [spec.params.get("case") for spec in specs if spec is not None]
    cases = [case for case in params if isinstance(case, Case)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = {}
        for case in cases:
            assert (case.scenario.name, case.launcher) not in begun, "two scenarios of one name"
            folder = tmp_path_factory.mktemp(case.scenario.name)
            args = (case.scenario, case.launcher, folder, shared_world.target)
            begun[case.scenario.name, case.launcher] = pool.submit(run_scenario, *args)
        yield begun
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(scenario, launcher), id=f"{scenario.name}-{launcher.value}")
        for scenario in SCENARIOS
        for launcher in Launcher
    ],
)
def test_scenario(case: Case, runs: Runs) -> None:
    """The claim is the docstring of the scenario."""
    ran = runs[case.scenario.name, case.launcher].result()
    print(ran.err)  # shown when the check fails
    case.scenario.check(ran)


def test_every_flag_of_torchrun_is_in_a_scenario() -> None:
    """No flag is only listed: each is given in some command line, or by its variable."""
    used = set()
    for scenario in SCENARIOS:
        words = shlex.split(" ".join((*scenario.nodes, scenario.command)))
        names = [*words, *(f"--{name[4:].lower()}" for name in scenario.env if name[:4] == "PET_")]
        used |= {name.partition("=")[0].replace("_", "-") for name in names}

    assert [flag for flag in launch.FLAGS if flag not in used] == []
