"""Plug-ins of --event-log-handler: any handler that a package provides, and none stops the job."""

from __future__ import annotations

import json

import pytest

from rallypoint.elastic.events.handlers import GROUPS
from support.machines.event_handlers import install
from support.processes.world import World


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
