"""What a forkserver is started with, and which workers it may fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.in_worker import PRELOAD, RUN_PATH
from rallypoint.agent.in_worker.preload.rallypoint_checks import is_of_round
from rallypoint.agent.preload.command import (
    FDS_ENV,
    PYTHONPATH_ENV,
    Shape,
    find_difference,
    forked_by,
    forkserver_environment,
    importable,
)
from rallypoint.agent.workers.environ import Function, Launch, worker_command

MARK = {"RALLYPOINT_AGENT": "mark"}
SHAPE = Shape(2, 1, None)
WORKER = SpawnRequest(
    worker_id=7,
    argv=("python", "-u", "train.py", "x"),
    env={"HOME": "/", "RANK": "3", "RALLYPOINT_ROUND": "1", **MARK},
    cwd="/tmp",
    stdout_fd=1,
    stderr_fd=2,
)
SERVER = WORKER._replace(env=forkserver_environment(WORKER.env, MARK))


def arguments_of(argv: tuple[str, ...], shape: Shape) -> tuple[str, ...]:
    """Return what a forkserver learns of a worker's command line."""
    return forked_by(-1, WORKER._replace(argv=argv), shape).argv


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RANK", True),
        ("LOCAL_RANK", True),
        ("GROUP_WORLD_SIZE", True),
        ("ROLE_NAME", True),
        ("MASTER_PORT", True),
        ("TORCHELASTIC_RUN_ID", True),
        ("TORCH_WORKER_SERVER_SOCKET", True),
        ("RALLYPOINT_ROUND", True),
        ("OMP_NUM_THREADS", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("FRANK", False),
        ("RANKING", False),
        ("LORA_RANK", False),
        ("MASTER_KEY", False),
    ],
)
def test_variables_of_a_round(name: str, expected: bool) -> None:
    """Those that the next round may change, and no others."""
    assert expected is is_of_round(name)


@pytest.mark.parametrize(
    ("before", "path"), [({}, PRELOAD), ({"PYTHONPATH": "/a:/b"}, f"{PRELOAD}:/a:/b")]
)
def test_environment_of_a_forkserver(before: dict[str, str], path: str) -> None:
    """Without a round, with the agent's mark, our folder first, and what PYTHONPATH was."""
    environment = forkserver_environment({**WORKER.env, **before}, MARK)

    assert environment["PYTHONPATH"] == path
    assert environment.get(PYTHONPATH_ENV) == before.get("PYTHONPATH")
    assert environment["RALLYPOINT_AGENT"] == "mark"
    assert environment[FDS_ENV] == "63,62"
    assert "RANK" not in environment
    assert "RALLYPOINT_ROUND" not in environment


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (WORKER, ""),
        (WORKER._replace(env={**WORKER.env, "RANK": "0", "MASTER_PORT": "1"}), ""),
        (WORKER._replace(argv=("python", "-u", "train.py", "y")), ""),
        (WORKER._replace(argv=("python", "-u", "other.py", "x")), "its command line differs"),
        (WORKER._replace(argv=("python", "-u", "train.py", "x", "y")), "its command line differs"),
        (WORKER._replace(cwd="/"), "its working directory differs"),
        (WORKER._replace(cwd=""), "its working directory differs"),
        (WORKER._replace(cpus=(0,)), ""),
        (WORKER._replace(env={**WORKER.env, "NEW": "1"}), "its environment differs: NEW"),
        (WORKER._replace(env={"RANK": "3", **MARK}), "its environment differs: HOME"),
    ],
)
def test_forkserver_forks_only_its_own_workers(worker: SpawnRequest, why: str) -> None:
    """What an import may have read must be the same; a round's ranks need not be."""
    assert why == find_difference(SERVER, worker, SHAPE)


@pytest.mark.parametrize(
    ("launch", "python", "arguments", "path"),
    [
        (Launch("{}/t.py", ("a", "b")), ("py", "-u"), ("a", "b"), "{}"),
        (Launch("{}/t.py", ("a",), run_path=True), ("py", "-u"), ("{}/t.py", "a"), "{}"),
        (Launch("pkg.t", ("a",), is_module=True), ("py", "-u"), ("a",), "{cwd}"),
        (Launch("{}", ("a",)), ("py", "-u"), ("a",), "{}"),
    ],
)
def test_parts_of_a_command_line(
    launch: Launch,
    python: tuple[str, ...],
    arguments: tuple[str, ...],
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script, a script by runpy, a module, and a folder with a main program."""
    monkeypatch.chdir("/")
    folder = str(tmp_path)
    script = launch.script.format(folder)
    filled = Launch(script, launch.args, is_module=launch.is_module, run_path=launch.run_path)
    argv = worker_command(filled, python="py", round=1, local_rank=0)
    shape = filled.shape("unused")

    assert argv[: shape.flags_end] == python
    assert arguments_of(argv, shape) == tuple(word.format(folder) for word in arguments)
    assert shape.path == path.format(folder, cwd="/")
    assert (RUN_PATH in argv) is launch.run_path


def test_parts_of_the_command_line_of_a_function() -> None:
    """Its arguments differ in each round; the path is the program's."""
    launch = Launch("f", (), function=Function("payload", "results", flags=("-X", "dev")))
    argv = worker_command(launch, python="py", round=2, local_rank=1)
    shape = launch.shape("/program")

    assert argv[1 : shape.flags_end] == ("-X", "dev")
    assert arguments_of(argv, shape) == ("payload", "results/1-2", "1")
    assert shape.path == "/program"


def test_forked_worker_is_told_what_differs() -> None:
    """Its arguments, the variables of its round, and its GPU; the rest is the forkserver's."""
    worker = WORKER._replace(env={**WORKER.env, "CUDA_VISIBLE_DEVICES": "1"})
    forked = forked_by(-3, worker, SHAPE)

    assert (forked.via, forked.argv) == (-3, ("x",))
    assert forked.env == {
        "RANK": "3",
        "RALLYPOINT_ROUND": "1",
        "CUDA_VISIBLE_DEVICES": "1",
        **MARK,
    }


def test_modules_to_import_of_a_record() -> None:
    """Each once, in the order of the program; never the program itself, or what failed."""
    recorded = ["json", "__main__", "a.b", "json", "gone", "", "sitecustomize", "a"]

    assert importable(recorded, {"gone"}) == ("json", "a.b", "a")


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (["pkg", "pkg.train", "json"], ("pkg", "json")),
        (["pkg", "pkg.train", "pkg.train.__main__", "json"], ("pkg", "pkg.train", "json")),
    ],
)
def test_main_module_is_not_imported(recorded: list[str], expected: tuple[str, ...]) -> None:
    """It would run without being the main program; of a package, only `__main__` runs."""
    assert importable(recorded, (), "pkg.train") == expected
