"""Functions whose workers were standbys: the function, its arguments and its value are the same."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from support.elastic.nodes import PROMPT, launch, result
from support.processes.world import World
from support.warm.standbys import TRIES

CONF = {**PROMPT, "crash_loop": 0}


def test_worker_of_a_function_was_a_standby(world: World) -> None:
    """The second attempt runs in interpreters that have imported the module, with its number."""
    node = launch(
        world,
        "obey",
        name="a",
        nproc=2,
        max_restarts=50,
        warm="json",
        warm_memory=1 << 40,
        conf=CONF,
    )
    for count in range(1, TRIES + 1):
        workers = world.mailbox.workers(2, round=count)
        node.wait_text("standbys_ready", count)
        workers[0].tell("exit", "1")
        node.wait_text("warm_started", count)
        if "workers=2 cold=0" in node.stderr():
            break
    warm = world.mailbox.workers(2, round=count + 1)
    for worker in warm:
        worker.tell("exit", "0")

    assert [worker.rank for worker in warm] == [0, 1]
    assert {worker.restart_count for worker in warm} == {count}
    assert not [name for name in warm[0].env if name.startswith("RALLYPOINT_STANDBY")]
    assert result(node)["values"] == {"0": None, "1": None}
    assert world.left() == []


@pytest.mark.parametrize(
    ("entry", "config", "text"),
    [
        ("describe", {"start_method": "fork"}, "warm: a forked worker is a copy"),
        ("describe", {"start_method": "forkserver"}, "warm: a forked worker is a copy"),
        (sys.executable, {}, "warm: only functions can be warm here"),
        (
            "describe",
            {"warm": "no name"},
            "rendezvous option warm: 'no name': 'no name' is not the name of a module",
        ),
    ],
)
def test_workers_that_cannot_be_warm(
    world: World, entry: str, config: dict[str, Any], text: str
) -> None:
    """The launch is refused before anything starts, and the error says what to do."""
    node = launch(world, entry, **{"warm": "json", **config})

    assert node.wait() == 1
    assert f"ValueError: {text}" in node.stderr()
    assert world.mailbox.started() == []
