"""What configures the interpreter of the workers changes no process of Rallypoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.commands import NODE_AGENT
from support.processes.world import World
from support.tries.commit import choose_marks

BROKEN = "raise ImportError('meant for the workers')\n"
HOOK = """
import sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("grpc", "msgspec"):
            raise ImportError("meant for the workers")

sys.meta_path.insert(0, Finder)
"""
WORKER = "import grpc, structlog; print(grpc.__file__, structlog.__file__)"
ENVIRONMENTS = {
    "older packages": ({"google/protobuf/__init__.py": "__version__ = '3.0'\n"}, {}),
    "packages of another Python": ({"msgspec/__init__.py": BROKEN}, {}),
    "a module of Python's": ({"typing.py": BROKEN, "signal.py": BROKEN}, {}),
    "import hooks": ({"sitecustomize.py": HOOK}, {}),
    "modules loaded before": (
        {"sitecustomize.py": "import sys; sys.modules['google'] = sys.modules['msgspec'] = sys\n"},
        {},
    ),
    "printed lines": ({"sitecustomize.py": "print('environment train is active')\n"}, {}),
    "warnings": (
        {"sitecustomize.py": "import warnings; warnings.simplefilter('error')\n"},
        {"PYTHONWARNINGS": "error"},
    ),
    "a prompt": ({}, {"PYTHONINSPECT": "1"}),
}


def plant(folder: Path, files: dict[str, str]) -> Path:
    """Write modules, and two packages that are those of the workers; return their folder."""
    theirs = {"grpc/__init__.py": "OLD = 1\n", "structlog.py": "OLD = 1\n"}
    for name, text in {**theirs, **files}.items():
        path = folder / "theirs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "theirs"


@pytest.mark.parametrize(
    ("kind", "hosts"),
    [
        pytest.param(kind, hosts, marks=choose_marks("deafness", at + hosts, 2, 0))
        for at, kind in enumerate(ENVIRONMENTS)
        for hosts in (False, True)
    ],
)
def test_agent_is_deaf(world: World, kind: str, hosts: bool) -> None:
    """The job runs, with a hosted coordinator too; the program has the modules of PYTHONPATH."""
    files, variables = ENVIRONMENTS[kind]
    folder = plant(world.folder, files)
    endpoint = f"--rdzv-endpoint=127.0.0.1:{world.ports.reserve()}"
    where = ("--nnodes=1", endpoint) if hosts else ("--standalone",)
    program = ("--no-python", sys.executable, "-c", WORKER)
    if kind == "import hooks" or "typing.py" in files:  # they would stop the worker too
        program = ("--no-python", "printenv", "PYTHONPATH", "PATH")
    env = {"PYTHONPATH": str(folder), **variables}
    done = world.run(NODE_AGENT, *where, *program, env=env)

    assert done.returncode == 0, done.stderr
    assert str(folder) in done.stdout
    assert "Traceback" not in done.stderr


def test_folder_of_the_program(world: World) -> None:
    """`python -m rallypoint` looks for modules in the current folder last."""
    plant(world.folder, {})
    command = [sys.executable, "-m", "rallypoint", "agent", "--no-python", "true"]
    done = subprocess.run(
        command, cwd=world.folder / "theirs", env=world.env(), capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
