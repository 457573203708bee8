"""What a case is, and what it gets: a folder, an endpoint, a number among the nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.elastic.program import api


@dataclass(frozen=True, slots=True)
class Setup:
    """Where a case runs."""

    folder: Path
    """Shared by all nodes of the case, empty at first."""
    endpoint: str
    """`localhost:0` for a case of one node."""
    node: int
    """0, 1, … for the processes of a case."""

    @property
    def logs(self) -> Path:
        return self.folder / f"logs-{self.node}"

    def config(self, **fields: Any) -> Any:
        """Return a LaunchConfig; `fields` are those that a case is about."""
        self.logs.mkdir(exist_ok=True)
        common: dict[str, Any] = {
            "min_nodes": 1,
            "max_nodes": 1,
            "nproc_per_node": 2,
            "run_id": self.folder.name,
            "rdzv_backend": "c10d",
            "rdzv_endpoint": self.endpoint,
            "rdzv_configs": {"last_call_timeout": 1, "join_timeout": 60},
            "max_restarts": 0,
            "monitor_interval": 0.05,
            "local_addr": "127.0.0.1",
        }
        if "logs_specs" not in fields:
            common["logs_specs"] = api.DefaultLogsSpecs(log_dir=str(self.logs))
        return api.LaunchConfig(**{**common, **fields})


@dataclass(frozen=True, slots=True)
class Case:
    """A program of a few lines that runs with either API."""

    run: Callable[[Setup], Any]
    """Returns what is compared: values that JSON can hold."""
    nodes: int
    """Processes that run it side by side."""

    @property
    def name(self) -> str:
        return self.run.__name__


CASES: dict[str, Case] = {}


def case(*, nodes: int = 1) -> Callable[[Callable[[Setup], Any]], Case]:
    """Make a function the case of this name; its docstring says what it is about."""

    def add(run: Callable[[Setup], Any]) -> Case:
        made = Case(run, nodes)
        assert made.name not in CASES, made.name
        CASES[made.name] = made
        return made

    return add
