"""Subclasses of torch's agents run unchanged after their imports are changed.

The programs in tests/support/elastic/subclasses are written for torch. Each runs with torch as it
is (`make test-records`), and with ours after one substitution. Both do the same.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from support.docs.pages import REPOSITORY
from support.elastic.program import api
from support.processes.world import World

FOLDER = REPOSITORY / "tests" / "support" / "elastic" / "subclasses"
TORCHS = re.compile(r"^from torch\.distributed\.(?:elastic|launcher)[.\w]* import", re.MULTILINE)
OURS = "from rallypoint.elastic import"
RUN_LIMIT_S = 240.0
WORKERS = (
    "[local_rank=0,global_rank=0,role_rank=0,world_size=2,role_world_size=2, "
    "local_rank=1,global_rank=1,role_rank=1,world_size=2,role_world_size=2]"
)
RAN = ("ids are those that were returned: True", "monitor")
STARTED = ("start [0, 1]", "started [0, 1]", "monitor HEALTHY")
FAILED: dict[str, Any] = {"state": "FAILED", "is_failed": True, "values": {}}
POPEN: dict[str, dict[str, Any]] = {
    "success": {"calls": ["start 0 INIT", *RAN, "shutdown SIGTERM"], "restarts_left": 0},
    "failure": {
        **FAILED,
        "calls": ["start 0 INIT", *RAN, "stop", "shutdown SIGTERM", "shutdown SIGTERM"],
        "failures": {"0": 7},
        "restarts_left": 0,
    },
    "restart": {
        "calls": [
            *("start 0 INIT", *RAN, "stop", "shutdown SIGTERM"),
            *("start 1 STOPPED", *RAN, "shutdown SIGTERM"),
        ],
        "restarts_left": 1,
    },
    "exhausted": {
        **FAILED,
        "calls": [
            *("start 0 INIT", *RAN, "stop", "shutdown SIGTERM"),
            *("start 1 STOPPED", *RAN, "stop", "shutdown SIGTERM", "shutdown SIGTERM"),
        ],
        "failures": {"0": 7},
        "restarts_left": 0,
    },
}
"""For each scenario of popen_agent.py what is not as in a success."""
POPEN_SUCCESS = {
    "state": "SUCCEEDED",
    "is_failed": False,
    "values": {"0": "value of 0", "1": "value of 1"},
    "failures": {},
    "left": [False, False],
    "is_quick": True,
}
WATCHFUL: dict[str, dict[str, Any]] = {
    "success": {
        "calls": ["rendezvous INIT", *STARTED, "monitor SUCCEEDED", "shutdown SIGTERM"],
    },
    "failure": {
        **FAILED,
        "calls": [
            *("rendezvous INIT", *STARTED, "monitor FAILED"),
            *("stop FAILED", "shutdown SIGTERM"),
        ],
        "failures": ["ValueError: attempt 0"],
    },
    "restart": {
        "calls": [
            *("rendezvous INIT", *STARTED, "monitor FAILED"),
            *("restart, 0 left", "stop FAILED", "shutdown SIGTERM"),
            *("rendezvous STOPPED", *STARTED, "monitor SUCCEEDED", "shutdown SIGTERM"),
        ],
        "values": {"0": [0, 1, "world of 2"], "1": [1, 1, "world of 2"]},
    },
    "unhealthy": {
        "calls": [
            *("rendezvous INIT", *STARTED, "asleep"),
            *("restart, 0 left", "stop UNHEALTHY", "shutdown SIGTERM"),
            *("rendezvous STOPPED", *STARTED, "monitor SUCCEEDED", "shutdown SIGTERM"),
        ],
        "values": {"0": [0, 1, "world of 2"], "1": [1, 1, "world of 2"]},
    },
    "unhealthy for good": {
        "calls": ["rendezvous INIT", *STARTED, "asleep", "stop UNHEALTHY", "shutdown SIGTERM"],
        "state": "UNHEALTHY",
        "values": {},
    },
}
"""For each scenario of watchful_agent.py what is not as in a success."""
UNHEALTHY_HERE = {"state": "FAILED", "is_failed": True}
"""A group that is unhealthy for good has failed: torch's `is_failed()` is false then, so that
`elastic_launch` returns as if nothing was wrong."""
WATCHFUL_SUCCESS = {
    "state": "SUCCEEDED",
    "is_failed": False,
    "values": {"0": [0, 0, "world of 2"], "1": [1, 0, "world of 2"]},
    "failures": [],
    "restarts_left": 0,
}
PROGRAMS = (
    ("popen_agent.py", POPEN, POPEN_SUCCESS),
    ("watchful_agent.py", WATCHFUL, WATCHFUL_SUCCESS),
)


LONG = ("unhealthy", "unhealthy for good", "success")
"""Not in `make test`, which has a restart and a failure already."""


def find_marks(which: str, scenario: str) -> tuple[pytest.MarkDecorator, ...]:
    """Return when a program runs. What torch does changes with its version only."""
    if which == api.TORCH:
        return (pytest.mark.records,)
    return (pytest.mark.long,) if scenario in LONG else ()


@pytest.mark.parametrize(
    ("program", "scenario", "expected", "which"),
    [
        pytest.param(
            *(name, scenario, {**common, **special}, which),
            id=f"{name}-{scenario}-{which}",
            marks=find_marks(which, scenario),
        )
        for name, scenarios, common in PROGRAMS
        for scenario, special in scenarios.items()
        for which in (api.TORCH, api.RALLYPOINT)
    ],
)
def test_subclass(
    program: str, scenario: str, expected: dict[str, Any], which: str, world: World, tmp_path: Path
) -> None:
    """The same calls in the same order, the same result and the same group."""
    path = tmp_path / program
    source = (FOLDER / program).read_text()
    path.write_text(source if which == api.TORCH else TORCHS.sub(OURS, source))
    folder = tmp_path / world.job_id
    folder.mkdir()
    command = world.start(program, [sys.executable, str(path), str(folder), scenario])
    code = command.wait(RUN_LIMIT_S)
    assert code == 0, command.stderr()
    found = json.loads(command.stdout())
    if which == api.RALLYPOINT and expected["state"] == "UNHEALTHY":
        assert found.pop("failures") == ["the agent found its workers UNHEALTHY"]
        expected = {**expected, **UNHEALTHY_HERE}
        del expected["failures"]
    state = "FAILED" if expected["state"] == "UNHEALTHY" else expected["state"]

    assert found == {**expected, "group": [state, 0, 1, WORKERS]}


def test_only_imports_name_torch() -> None:
    """The substitution leaves no name of torch in the code."""
    for name, *_ in PROGRAMS:
        changed = TORCHS.sub(OURS, (FOLDER / name).read_text())

        assert "torch." not in changed.partition('"""\n\n')[2], name
