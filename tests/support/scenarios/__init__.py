"""Command lines of torchrun, by subject, each with a check of what must come of it."""

from support.scenarios import failures, groups, launch, output, refusals
from support.torchrun.launchers import Scenario

SCENARIOS = [
    scenario
    for module in (launch, groups, output, failures, refusals)
    for scenario in vars(module).values()
    if isinstance(scenario, Scenario)
]
