"""Plug-ins of --event-log-handler: any handler that a package provides, and none stops the job."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from rallypoint.elastic.events import GROUPS
from support.machines.event_handlers import install
from support.processes.world import World

PAGE = Path(__file__).parents[3] / "docs" / "events-hooks.md"
PROGRAM = """
from rallypoint.elastic import ConsoleMetricHandler, LaunchConfig, elastic_launch, metrics

def train():
    return 1

if __name__ == "__main__":
    metrics.configure(ConsoleMetricHandler(), group="torchelastic")
    config = LaunchConfig(1, 1, 2, role="trainer", event_log_handler="mine")
    elastic_launch(config, train)()
"""
PROFILED = re.compile(r"\w+\.(_?[a-z]\w+)\.(success|duration\.ms)")


@pytest.mark.parametrize("group", GROUPS)
def test_plugin_records_the_events(world: World, group: str) -> None:
    """A package's handler gets all events in order, those of the end too."""
    written = world.folder / "events"
    env = install(world.folder / "site", group, mine="hooks_here:File")
    env["HOOKS_FILE"] = str(written)
    agent = world.agent("a", "--event-log-handler=mine", env=env)
    (worker,) = world.mailbox.workers(1)
    worker.tell("exit", "0")

    assert agent.wait() == 0
    events = [json.loads(line) for line in written.read_text().splitlines()]
    assert [(event["source"], event["metadata"]["state"]) for event in events] == [
        ("AGENT", "RENDEZVOUS"),
        ("WORKER", "START"),
        ("WORKER", "SUCCEEDED"),
        ("AGENT", "SUCCEEDED"),
    ]


@pytest.mark.parametrize(
    ("attribute", "event", "why"),
    [
        ("absent", "event_handler_not_loaded", "has no attribute 'absent'"),
        ("Failing", "event_handler_failed", "no route to the log server"),
        ("Slow", "events_dropped", "the handler does not return within 2 s"),
    ],
)
def test_broken_plugin_stops_nothing(world: World, attribute: str, event: str, why: str) -> None:
    """One warning says what is wrong with it, and the job succeeds; the agent waits for none."""
    env = install(world.folder / "site", GROUPS[0], mine=f"hooks_here:{attribute}")
    agent = world.agent("a", "--event-log-handler=mine", env=env)
    (worker,) = world.mailbox.workers(1)
    worker.tell("exit", "0")

    assert agent.wait() == 0
    (warning,) = agent.events(event)
    assert warning["level"] == "warning" and warning["handler"] == "mine"
    assert why in (warning.get("why") or warning["error"])


def test_python_api_records_torchs_events_and_metrics(world: World) -> None:
    """In torch's order, and no metric that the page does not list."""
    written = world.folder / "events"
    env = install(world.folder / "site", GROUPS[0], mine="hooks_here:File")
    program = world.folder / "program.py"
    program.write_text(PROGRAM)
    done = world.run(sys.executable, str(program), env={**env, "HOOKS_FILE": str(written)})

    events = [json.loads(line) for line in written.read_text().splitlines()]
    assert [(event["source"], event["metadata"]["state"]) for event in events] == [
        ("AGENT", "RENDEZVOUS"),
        ("AGENT", "ASSIGN_WORKER_RANKS"),
        *[("WORKER", "START")] * 2,
        *[("WORKER", "SUCCEEDED")] * 2,
        ("AGENT", "SUCCEEDED"),
    ]
    found = dict(re.findall(r"\[torchelastic\]: (.+)=(\d+)", done.stdout))
    expected = {"run_total": "1", "run_success_no_retries": "1", "run_failed_with_retries": "0"}
    assert expected.items() <= {name.split(".")[-1]: value for name, value in found.items()}.items()
    page = PAGE.read_text("utf-8")
    for name in found:
        profiled = PROFILED.fullmatch(name)
        listed = profiled[1] if profiled else name.replace("trainer", "ROLE")
        assert f"`{listed}`" in page or listed.endswith((".healthy", ".succeeded")), name
