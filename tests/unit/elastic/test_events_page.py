"""docs/events-hooks.md lists torch's events and ours: states, sources, metadata, names."""

from __future__ import annotations

import ast
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.core.held_round import HeldRound, LocalExit, LocalWorker, Stage
from rallypoint.agent.torchelastic.events import About, EventLog, Moment
from rallypoint.elastic import events
from support.core.orders import run_order

PAGE = (Path(__file__).parents[3] / "docs" / "events-hooks.md").read_text("utf-8")
WATCHDOG = "RUNNING"
"""The state of torch's events about its file timer."""


def rows(heading: str, text: str = PAGE) -> list[list[str]]:
    """Return the cells of the first table with this heading, without backticks."""
    _, _, rest = text.partition(f"\n| {heading} |")
    lines = rest.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines]


def fields() -> list[str]:
    """Return the fields of an event's metadata, then those of its inner metadata."""
    outer, _, inner = PAGE.partition("The fields of `metadata`.")
    return [name for text in (outer, inner) for name, _ in rows("field | value", text)]


def torch_source(module: str) -> ast.Module:
    """Return torch's source without importing torch."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("torch is not installed")
    if not version("torch").startswith("2.13."):
        pytest.skip("the page is about the events of torch 2.13")
    path = Path(spec.submodule_search_locations[0], "distributed", "elastic", *module.split("."))
    return ast.parse(path.with_suffix(".py").read_text("utf-8"))


def find_function(tree: ast.AST, name: str) -> ast.AST:
    (found,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    )
    return found


def texts(tree: ast.AST) -> set[str]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def documented() -> set[tuple[str, str]]:
    return {(state, source) for state, source, *_ in rows("state")}


def test_torchs_events_are_listed() -> None:
    """Every state that torch's agents construct an event for, with its source, and no other."""
    tree = torch_source("agent.server.api")
    found: set[tuple[str, str]] = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", "")
        if name == "record_duration":
            found.add((next(iter(texts(call))), "AGENT"))
        elif name == "_construct_event":
            source = re.search(r"EventSource\.(\w+)", ast.unparse(call))
            found |= {(state, source[1]) for state in texts(call) if source}
    states = texts(find_function(tree, "_get_worker_state"))
    assert "TERMINATED" in states
    found |= {(state, "WORKER") for state in ("TERMINATED", "SUCCEEDED", "FAILED")}
    watchdog = find_function(
        torch_source("agent.server.local_elastic_agent"), "_log_watchdog_event"
    )
    assert WATCHDOG in texts(watchdog)
    found.add((WATCHDOG, "AGENT"))

    assert found == documented()


def test_torchs_metadata_is_listed() -> None:
    """Every field, in torch's order."""
    tree = find_function(torch_source("agent.server.api"), "_construct_event")
    outer, inner = [], ["group_world_size", "entry_point"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and len(node.keys) > len(inner):
            outer = [ast.literal_eval(key) for key in node.keys if key is not None]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "md":
            inner.append(ast.literal_eval(node.slice))

    assert fields() == [*outer, *inner]


def test_torchs_names_are_ours() -> None:
    """Sources, and the fields of an event."""
    tree = torch_source("events.api")
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}

    def names(name: str) -> list[str]:
        return [
            ast.unparse(target)
            for node in classes[name].body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]

    assert names("EventSource") == [source.value for source in events.EventSource]
    assert names("Event") == list(events.Event.__dataclass_fields__)


def test_our_events_are_listed() -> None:
    """What an agent records in a round that ends in every possible way."""
    recorded: list[dict[str, Any]] = []
    log = EventLog(About("job", "role", "host", "x.py"), recorded.append, lambda: Moment(0, 0))
    order = run_order(number=1, world_size=3)
    ends = (
        LocalExit(0, None, 90, False, None, ""),
        LocalExit(1, None, 90, False, None, ""),
        LocalExit(None, 15, 90, True, None, ""),
    )
    begun = HeldRound(order, tuple(LocalWorker(rank) for rank in range(3)))
    running = tuple(LocalWorker(rank, 4_000, 10) for rank in range(3))
    ended = tuple(LocalWorker(rank, 4_000, 10, end) for rank, end in enumerate(ends))
    log.saw(begun)
    log.saw(HeldRound(order, running, stage=Stage.RUNNING))
    log.saw(HeldRound(order, ended, stage=Stage.RUNNING))
    log.ended(is_orderly=True, text="")
    log.ended(is_orderly=False, text="a signal")

    listed = documented() - {("ASSIGN_WORKER_RANKS", "AGENT"), (WATCHDOG, "AGENT")}
    assert {(event["metadata"]["state"], event["source"]) for event in recorded} == listed
    for event in recorded:
        assert event["name"] == f"torchelastic.worker.status.{event['metadata']['state']}"
        assert [*event["metadata"]] == fields()[: len(event["metadata"])]
