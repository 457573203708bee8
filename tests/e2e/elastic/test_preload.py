"""Functions whose workers are forked: the function, its arguments and its value are the same."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from support.elastic.nodes import PROMPT, launch, result
from support.preload.room import is_forked
from support.processes.world import World

CONF = {**PROMPT, "crash_loop": 0}


def test_workers_of_a_function_are_forked(world: World) -> None:
    """Those of each attempt, with its number."""
    node = launch(world, "obey", nproc=2, max_restarts=1, preload="json", conf=CONF)
    for count in range(2):
        workers = world.mailbox.workers(2, round=count + 1)

        assert [worker.rank for worker in workers] == [0, 1]
        assert {worker.restart_count for worker in workers} == {count}
        assert all(is_forked(worker.pid) for worker in workers)
        assert not [name for name in workers[0].env if name.startswith("RALLYPOINT_PRELOAD")]
        if count == 0:
            workers[0].tell("exit", "1")
    for worker in workers:
        worker.tell("exit", "0")
    assert result(node)["values"] == {"0": None, "1": None}
    assert world.left() == []


@pytest.mark.parametrize(
    ("entry", "config", "text"),
    [
        ("describe", {"start_method": "fork"}, "preload: a forked worker is a copy"),
        ("describe", {"start_method": "forkserver"}, "preload: a forked worker is a copy"),
        (sys.executable, {}, "preload: only functions"),
        (
            "describe",
            {"preload": "no name"},
            "rendezvous option preload: 'no name' is not the name of a module",
        ),
    ],
)
def test_what_cannot_be_preloaded(
    world: World, entry: str, config: dict[str, Any], text: str
) -> None:
    """The launch is refused before anything starts, and the error says what to do."""
    node = launch(world, entry, **{"preload": "json", **config})

    assert node.wait() == 1
    assert f"ValueError: {text}" in node.stderr()
    assert world.mailbox.started() == []
