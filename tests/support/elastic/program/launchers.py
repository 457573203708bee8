"""Values of the API by themselves: what is made without a launch."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from support.elastic.program import api
from support.elastic.program.case import Setup, case
from support.elastic.program.outcome import (
    attempt,
    by_rank,
    clean,
    clean_deep,
    describe_error,
    describe_failure,
)
from support.elastic.program.values import rank, returns_nothing

CLASSES = (
    *("LaunchConfig", "WorkerSpec", "Worker", "WorkerGroup", "RunResult", "RendezvousParameters"),
    *("ElasticAgent", "SimpleElasticAgent", "LocalElasticAgent", "elastic_launch"),
    *("ProcessFailure", "ChildFailedError", "ErrorHandler", "SignalException"),
    *("LogsSpecs", "DefaultLogsSpecs", "LogsDest", "RendezvousHandler", "RendezvousInfo"),
    *("RendezvousStoreInfo", "RendezvousHandlerRegistry"),
)
FUNCTIONS = (*("launch_agent", "record", "get_error_handler", "to_map", "get_rendezvous_handler"),)
ERRORS = (
    *("RendezvousError", "RendezvousClosedError", "RendezvousTimeoutError"),
    *("RendezvousConnectionError", "RendezvousStateError", "RendezvousGracefulExitError"),
    *("ChildFailedError", "SignalException"),
)
CONTENTS = {
    "recorded": {
        "message": {"message": "E: x", "extraInfo": {"py_callstack": "T", "timestamp": "7"}}
    },
    "text": {"message": "a text", "timestamp": "9"},
    "text without a time": {"message": "a text"},
    "empty text": {"message": "", "timestamp": 9},
    "no message": {"error": 1},
    "more": {"message": {"message": "m", "errorCode": 5, "extraInfo": {"timestamp": 3, "k": "v"}}},
    "no callstack": {"message": {"message": "m", "extraInfo": {"timestamp": 3}}},
}
"""Error files as programs write them."""


def describe_signature(function: Any) -> list[str]:
    """Return parameters with their defaults, without types."""
    return [
        "**" if one.kind is one.VAR_KEYWORD else f"{one.name}{_default(function, one)}"
        for one in inspect.signature(function).parameters.values()
    ]


def _default(function: Any, one: inspect.Parameter) -> str:
    if one.default is one.empty:
        return ""
    if "factory" not in repr(one.default):
        return f" = {one.default!r}"
    (made,) = (field for field in dataclasses.fields(function) if field.name == one.name)
    assert made.default_factory is not dataclasses.MISSING
    return f" = {made.default_factory()!r}"


def make_failure(code: int, local_rank: int = 0, error_file: str = "<N/A>") -> Any:
    return api.ProcessFailure(local_rank, 1234, code, error_file)


@case()
def signatures_of_classes(setup: Setup) -> Any:
    """Parameters and defaults."""
    return {name: describe_signature(getattr(api, name)) for name in CLASSES}


@case()
def signatures_of_functions(setup: Setup) -> Any:
    """Parameters and defaults."""
    return {name: describe_signature(getattr(api, name)) for name in FUNCTIONS}


@case()
def methods_of_agents(setup: Setup) -> Any:
    """Those that a subclass overrides or calls."""
    names = (
        *("run", "get_worker_group", "_start_workers", "_stop_workers", "_monitor_workers"),
        *("_shutdown", "_rendezvous", "_assign_worker_ranks", "_initialize_workers"),
        *("_restart_workers", "_invoke_run", "_exit_barrier", "_record_worker_events"),
        *("get_event_failed", "get_event_succeeded", "_construct_event", "record_duration"),
        *("_record_metrics", "_get_worker_state"),
    )
    found = {name: getattr(api.LocalElasticAgent, name, None) for name in names}
    return {name: describe_signature(one) if one else None for name, one in found.items()}


@case()
def abstract_methods(setup: Setup) -> Any:
    """Those that a subclass has to define."""
    agents = ("ElasticAgent", "SimpleElasticAgent", "LocalElasticAgent")
    names = (*agents, "LogsSpecs", "RendezvousHandler")
    return {name: sorted(getattr(api, name).__abstractmethods__) for name in names}


@case()
def kinds_of_errors(setup: Setup) -> Any:
    """Their bases."""
    return {name: [one.__name__ for one in getattr(api, name).__mro__] for name in ERRORS}


@case()
def states(setup: Setup) -> Any:
    """All seven, and which of them run."""
    state = api.WorkerState
    running = [one.name for one in state if state.is_running(one)]
    return [[[one.name, one.value] for one in state], running, state("FAILED") == "FAILED"]


@case()
def run_results(setup: Setup) -> Any:
    """A result is failed in one state only."""
    results = [api.RunResult(state) for state in api.WorkerState]
    return [[one.state.name, one.is_failed(), one.return_values, one.failures] for one in results]


@case()
def launch_config(setup: Setup) -> Any:
    """What becomes of the defaults."""
    config = api.LaunchConfig(min_nodes=1, max_nodes=2, nproc_per_node=4)
    legacy = api.LaunchConfig(1, 1, 1, rdzv_timeout=7)
    kept = api.LaunchConfig(1, 1, 1, rdzv_configs={"timeout": 8})
    fields = {
        one.name: clean(setup, repr(getattr(config, one.name)))
        for one in dataclasses.fields(config)
        if one.name != "numa_options"
    }
    return [fields, legacy.rdzv_configs, kept.rdzv_configs]


def read_stream(text: str) -> str:
    return repr(api.Std.from_str(text))


@case()
def streams(setup: Setup) -> Any:
    """`Std` and `to_map`."""
    texts = ("0", "3", "0:3,1:0", "0:1,2:2", "4", "x", "", "0:4", "10:1")
    read = {text: attempt(setup, read_stream, text) for text in texts}
    maps = [api.to_map(api.Std.OUT, 2), api.to_map({1: api.Std.ERR}, 3)]
    return [read, [by_rank(one) for one in maps], int(api.Std.OUT | api.Std.ERR)]


@case()
def logs_specs(setup: Setup) -> Any:
    """Destinations of two workers."""
    specs = api.DefaultLogsSpecs(
        log_dir=str(setup.logs), redirects=api.Std.OUT, tee={1: api.Std.ALL}, local_ranks_filter={1}
    )
    env = {"TORCHELASTIC_RUN_ID": setup.folder.name, "TORCHELASTIC_RESTART_COUNT": "2"}
    envs: dict[int, dict[str, str]] = {0: {**env}, 1: {**env}}
    dest = specs.reify(envs)
    files = {name: clean_deep(setup, value) for name, value in dataclasses.asdict(dest).items()}
    found = {
        name: by_rank(value) if isinstance(value, dict) else value for name, value in files.items()
    }
    root = clean(setup, specs.root_log_dir)
    return [
        found,
        clean_deep(setup, by_rank(envs, dict)),
        root,
        specs == specs,
        clean(setup, repr(specs)),
    ]


@case()
def refused_specs(setup: Setup) -> Any:
    """Values that make no sense."""
    wrong = ({"local_world_size": 0}, {"monitor_interval": 0}, {"entrypoint": None}, {"nope": 1})
    common = {"role": "r", "local_world_size": 1, "rdzv_handler": None, "entrypoint": rank}
    return [attempt(setup, api.WorkerSpec, **{**common, **one}) for one in wrong]


@case()
def names_of_entry_points(setup: Setup) -> Any:
    """Of functions and of programs."""
    common = {"role": "r", "local_world_size": 1, "rdzv_handler": None}
    points = (rank, returns_nothing, "/usr/bin/env", "script.py", api.RunResult)
    return [api.WorkerSpec(entrypoint=one, **common).get_entrypoint_name() for one in points]


@case()
def workers(setup: Setup) -> Any:
    """Texts and defaults."""
    spec = api.WorkerSpec(role="r", local_world_size=2, rdzv_handler=None, entrypoint=rank)
    group = api.WorkerGroup(spec)
    names = ("group_rank", "group_world_size", "master_addr", "master_port", "store")
    known = [getattr(group, name) for name in names]
    worker = api.Worker(1, 2, 3, 4, 5)
    return [str(worker), repr(worker), str(group.workers), known, group.state.name, worker.id]


@case()
def parameters_of_a_rendezvous(setup: Setup) -> Any:
    """Settings as numbers and as truth."""
    conf = {"a": "5", "b": "yes", "c": "False", "d": 0, "e": "0.5", "f": None, "g": "text"}
    made = api.RendezvousParameters("c10d", "host:1", "id", 1, 2, None, **conf)
    read = [
        {name: attempt(setup, read, name) for name in (*conf, "none")}
        for read in (made.get, made.get_as_int, made.get_as_bool)
    ]
    wrong = (
        ("", "h", "i", 1, 1),
        ("b", "h", "i", 0, 1),
        ("b", "h", "i", 2, 1),
        ("b", "h", "", 1, 1),
    )
    refused = [attempt(setup, api.RendezvousParameters, *one) for one in wrong]
    kinds = [one["raised"]["type"] if "raised" in one else "taken" for one in refused]
    return [read, kinds, made.get("none", 3), made.get_as_int("z", 4)]


@case()
def unknown_backend(setup: Setup) -> Any:
    """A rendezvous without a creator."""
    made = api.RendezvousParameters("no-such-backend", "host:1", "id", 1, 2)
    return attempt(setup, lambda: api.get_rendezvous_handler(made))


@case()
def failures_of_error_files(setup: Setup) -> Any:
    """What a ProcessFailure reads."""
    found = {}
    for name, content in CONTENTS.items():
        path = setup.folder / f"{name}.json"
        path.write_text(json.dumps(content))
        found[name] = attempt(setup, _read_failure, setup, path)
    (setup.folder / "broken.json").write_text("{")
    broken = attempt(setup, _read_failure, setup, setup.folder / "broken.json")
    return [found, broken]


def _read_failure(setup: Setup, path: Path) -> Any:
    failure = make_failure(1, error_file=str(path))
    return [describe_failure(setup, failure, 0.0), min(failure.timestamp, 1000)]


@case()
def failures_without_error_files(setup: Setup) -> Any:
    """Exit codes and signals."""
    now = time.time()  # noqa: TID251  # the time stamps of failures are of this clock
    codes = (1, 255, -9, -signal.SIGSEGV, -64, -99)
    return [describe_failure(setup, make_failure(code), now) for code in codes]


@case()
def text_of_a_failed_child(setup: Setup) -> Any:
    """The report, with one failure and with several."""
    now = time.time()  # noqa: TID251  # as above
    recorded = setup.folder / "error.json"
    recorded.write_text(json.dumps(CONTENTS["recorded"]))
    several = {5: make_failure(-15, 1), 2: make_failure(3, 0, str(recorded)), 7: make_failure(1, 2)}
    errors = [api.ChildFailedError("train.py", {0: make_failure(7)})]
    errors.append(api.ChildFailedError("a" * 80, several))
    return [describe_error(setup, error, now) for error in errors]


@case()
def failed_child_without_failures(setup: Setup) -> Any:
    """It makes no sense."""
    return attempt(setup, lambda: api.ChildFailedError("train.py", {}))


def recorded(function: Any, arg: Any) -> str:
    return repr(api.record(function)(arg))


@case()
def record_in_the_launcher(setup: Setup) -> Any:
    """What the decorator does with exits, with and without an error file."""
    found = []
    for name in ("", str(setup.folder / "error.json")):
        os.environ["TORCHELASTIC_ERROR_FILE"] = name
        for code in (0, None, 2, "text"):
            found.append(attempt(setup, recorded, sys.exit, code))
        found.append(attempt(setup, recorded, int, "x"))
        found.append(attempt(setup, recorded, int, "5"))
    path = setup.folder / "error.json"
    return [found, clean_deep(setup, json.loads(path.read_text()))]


@case()
def generated_run_id(setup: Setup) -> Any:
    """A launch without a run id gets one."""
    config = setup.config(run_id="", nproc_per_node=1)
    found = attempt(setup, lambda: by_rank(api.elastic_launch(config, rank)()))
    return [found, config.run_id.isdigit() or len(config.run_id) > 5]


@case()
def launch_agent_itself(setup: Setup) -> Any:
    """The function that `elastic_launch` calls."""
    config = setup.config()
    return attempt(setup, lambda: by_rank(api.launch_agent(config, abs, [-3])))
