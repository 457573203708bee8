"""The values of the Python API: names, defaults and checks are torch's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rallypoint.elastic
from rallypoint.elastic import (
    DefaultLogsSpecs,
    LaunchConfig,
    LogsDest,
    RendezvousHandlerRegistry,
    RendezvousParameters,
    RunResult,
    Std,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    elastic_launch,
    get_rendezvous_handler,
    to_map,
)
from rallypoint.elastic.agents.signal_gate import parse_signals
from rallypoint.elastic.launcher import find_entrypoint_name


def make_spec(**changed: Any) -> WorkerSpec:
    handler = get_rendezvous_handler(RendezvousParameters("c10d", "", "job", 1, 1))
    fields: dict[str, Any] = {"entrypoint": print, **changed}
    return WorkerSpec(**{"role": "r", "local_world_size": 2, "rdzv_handler": handler, **fields})


def test_every_name_can_be_imported() -> None:
    """No name is listed that does not exist, and none is found that is not listed."""
    assert all(getattr(rallypoint.elastic, name) for name in rallypoint.elastic.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rallypoint.elastic.nothing  # noqa: B018


def test_import_is_light() -> None:
    """All names together import neither torch nor gRPC nor a logger."""
    code = "import sys; from rallypoint.elastic import *; print(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    heavy = {"torch", "grpc", "google", "structlog", "asyncio"}
    assert set() == heavy & {name.partition(".")[0] for name in run.stdout.split()}


def test_states() -> None:
    """All seven states; only two of them mean running processes."""
    names = ["UNKNOWN", "INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED"]

    assert names == [state.name for state in WorkerState]
    running = [state.name for state in WorkerState if WorkerState.is_running(state)]
    assert running == ["HEALTHY", "UNHEALTHY"]
    assert [RunResult(state).is_failed() for state in WorkerState] == [False] * 6 + [True]


def test_group_before_the_first_round() -> None:
    """Workers have local ranks only."""
    group = WorkerGroup(make_spec())

    assert (group.state, group.group_rank, group.store) == (WorkerState.INIT, None, None)
    assert [0, 1] == [worker.local_rank for worker in group.workers]
    assert "local_rank=1,global_rank=-1,role_rank=-1" in str(group.workers[1])


@pytest.mark.parametrize(
    "changed", [{"local_world_size": 0}, {"monitor_interval": 0}, {"entrypoint": None}]
)
def test_wrong_specification(changed: dict[str, Any]) -> None:
    """The type of the error is torch's."""
    with pytest.raises(AssertionError):
        make_spec(**changed)


def test_names_of_entry_points() -> None:
    """A function has its own name, a program its file's, an interpreter its script's."""
    assert make_spec(entrypoint="/bin/true").get_entrypoint_name() == "true"
    assert make_spec().get_entrypoint_name() == "print"
    names = [
        find_entrypoint_name(print, []),
        find_entrypoint_name("/bin/true", ["x"]),
        find_entrypoint_name(sys.executable, ["-u", "train.py", "x"]),
        find_entrypoint_name(None, []),
    ]
    assert names == ["print", "/bin/true", "train.py", ""]


def test_defaults_of_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are torch's; the caller's dictionary is not changed."""
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")
    given = {"join_timeout": 3}
    config = LaunchConfig(1, 2, 4, rdzv_configs=given)

    assert (config.rdzv_configs, given) == (
        {"join_timeout": 3, "timeout": 900},
        {"join_timeout": 3},
    )
    assert (config.max_restarts, config.role, config.shutdown_timeout) == (3, "default_role", 7)
    assert LaunchConfig(1, 1, 1, rdzv_timeout=5).rdzv_configs == {"timeout": 5}
    assert config.logs_specs == DefaultLogsSpecs()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node must be at least 1"),
        ({"max_restarts": -1}, "max_restarts must not be negative"),
        ({"monitor_interval": 0}, "monitor_interval must be positive"),
        ({"start_method": "thread"}, "'thread' is unknown; known: spawn, fork, forkserver"),
        (
            {"min_nodes": 2, "max_nodes": 2, "rdzv_endpoint": "localhost"},
            "several nodes needs a name",
        ),
        ({"event_log_handler": "nowhere"}, "'nowhere' is unknown; known: "),
        ({"min_nodes": 0, "run_id": "job"}, "min_nodes must be at least 1"),
        ({"min_nodes": 2, "run_id": "job"}, "must be at least min_nodes"),
    ],
)
def test_wrong_configuration(changed: dict[str, Any], text: str) -> None:
    """A launch that cannot mean anything starts nothing."""
    fields: dict[str, Any] = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1, **changed}

    with pytest.raises(ValueError, match=text):
        elastic_launch(LaunchConfig(**fields), print)()


@pytest.mark.parametrize(
    ("nodes", "backend", "endpoint", "name"),
    [
        pytest.param((1, 1), "c10d", "localhost:29777", r"\d+", id="single-node"),
        pytest.param((1, 2), "c10d", "localhost:29777", "port-29777", id="hosted"),
        pytest.param((2, 2), "c10d", "localhost", "port-29400", id="hosted-at-the-default-port"),
        pytest.param((1, 2), "static", "localhost:29501", "port-29501", id="static"),
        pytest.param((1, 2), "etcd", "localhost:29777", r"\d+", id="drawn"),
        pytest.param((1, 2), "rallypoint", "localhost", r"\d+", id="drawn-by-ours"),
    ],
)
def test_job_without_a_name(
    nodes: tuple[int, int],
    backend: str,
    endpoint: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is named as the command names it, else a name is drawn."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    config = LaunchConfig(*nodes, 1, rdzv_backend=backend, rdzv_endpoint=endpoint)
    # Its options are refused after the job was named.
    config.rdzv_configs["is_host"] = config.rdzv_configs["lease"] = "neither"

    with pytest.raises(ValueError, match="neither"):
        elastic_launch(config, print)()
    assert re.fullmatch(name, config.run_id)


def test_job_of_slurm_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes of a Slurm job find the same name."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    config = LaunchConfig(2, 2, 1, rdzv_backend="rallypoint", rdzv_endpoint="localhost")
    config.rdzv_configs["lease"] = "neither"

    with pytest.raises(ValueError, match="neither"):
        elastic_launch(config, print)()
    assert config.run_id == "slurm-7.1"


def test_negative_shutdown_timeout() -> None:
    """It is refused at once, as by torch."""
    with pytest.raises(ValueError, match="shutdown_timeout must not be negative: -1"):
        LaunchConfig(1, 1, 1, shutdown_timeout=-1)


def test_registry() -> None:
    """A name belongs to one creator, and its handlers say that name."""
    registry = RendezvousHandlerRegistry()
    registry.register("mine", lambda params: get_rendezvous_handler(params))
    with pytest.raises(ValueError, match="'mine' is already registered"):
        registry.register("mine", get_rendezvous_handler)
    with pytest.raises(ValueError, match="'other' is not registered; known: mine"):
        registry.create_handler(RendezvousParameters("other", "", "job", 1, 1))


def test_parameters_of_all_types() -> None:
    """Options are read as torch reads them."""
    parameters = RendezvousParameters("b", "", "job", 1, 1, yes="True", no=0, count="5", bad="x")

    assert parameters.get_as_bool("yes") is True
    assert parameters.get_as_bool("no") is False
    assert parameters.get_as_bool("none", default=True) is True
    assert parameters.get_as_int("count") == 5
    for read in (parameters.get_as_bool, parameters.get_as_int):
        with pytest.raises(ValueError, match="rendezvous option bad"):
            read("bad")


def test_streams() -> None:
    """One choice for all workers, or one by local rank; more than ten workers are possible."""
    assert Std.from_str("3") is Std.ALL
    assert Std.from_str("0:3,12:1") == {0: Std.ALL, 12: Std.OUT}
    assert to_map({1: Std.ERR}, 2) == {0: Std.NONE, 1: Std.ERR}
    assert to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    for text in ("4", "0:4", "a:1", ""):
        with pytest.raises(ValueError, match="is neither"):
            Std.from_str(text)


def test_default_destinations(tmp_path: Path) -> None:
    """Each worker has a folder; what is not chosen goes to the console or, unseen, nowhere."""
    specs = DefaultLogsSpecs(str(tmp_path), Std.ERR, {1: Std.OUT}, local_ranks_filter={1})
    envs = {
        rank: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "2"} for rank in (0, 1)
    }
    dest = specs.reify(envs)
    (run,) = tmp_path.iterdir()
    folder = run / "attempt_2"

    assert dest == LogsDest(
        stdouts={0: os.devnull, 1: str(folder / "1" / "stdout.log")},
        stderrs={rank: str(folder / str(rank) / "stderr.log") for rank in (0, 1)},
        tee_stdouts={1: str(folder / "1" / "stdout.log")},
        error_files={rank: str(folder / str(rank) / "error.json") for rank in (0, 1)},
        filtered_stdout=str(folder / "filtered_stdout.log"),
        filtered_stderr=str(folder / "filtered_stderr.log"),
    )
    assert [dest.error_files[rank] for rank in (0, 1)] == [
        env["TORCHELASTIC_ERROR_FILE"] for env in envs.values()
    ]


def test_signals_by_name() -> None:
    """Unknown names are left out, and each signal counts once."""
    assert [2, 15] == [int(one) for one in parse_signals("SIGINT, SIGTERM,SIGNOTHING,SIGINT,")]
