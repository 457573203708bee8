"""Run popular training frameworks under Rallypoint, unmodified, and print what happened as a table.

    python examples/works_with.py
    python examples/works_with.py --python ~/frameworks/bin/python --only lightning,ignite

Most programs run with node-agent, some also with torchrun and Rallypoint's back end, or as a
function from Python. Rallypoint and the frameworks may live in different environments: `--python`
names the interpreter of the workers. What it does not have is skipped, with a line that says how to
install it; torchrun and Python need Rallypoint there too. Nothing is downloaded. Exits with 1 if a
program failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

PROGRAMS = Path(__file__).parent / "frameworks"
LIMIT_S = 300.0
"""For one program: the import of a framework takes most of it, and longer on a busy machine."""
TAIL_LINES = 25
"""Shown of a program that failed."""
ACCELERATE_TESTS = "accelerate.test_utils.scripts"
FIND_VERSION = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"


class Launcher(Enum):
    """What starts the workers."""

    NODE_AGENT = "node-agent"
    TORCHRUN = "torchrun"
    PYTHON = "Python"


@dataclass(frozen=True)
class Case:
    """A program of a framework, and what its output has to contain."""

    framework: str
    """As `pip install` knows it."""
    title: str
    argv: tuple[str, ...]
    """Flags and program for the agent; `{bin}` is the folder of the workers' interpreter."""
    expected: tuple[str, ...] = ()
    """Texts that one of the workers prints."""
    nodes: int = 1
    workers: int = 2
    """Of each node."""
    launcher: Launcher = Launcher.NODE_AGENT
    """PYTHON takes a program that has a function `train`, on one node with two workers."""


def test_script(name: str) -> Case:
    """Return a test that comes with Accelerate."""
    return Case("accelerate", f"its own `{name}`", ("-m", f"{ACCELERATE_TESTS}.{name}"))


def ranks(world: int, rest: str) -> tuple[str, ...]:
    """Return what each rank prints in the end."""
    return tuple(f"rank {rank} of {world}: {rest}" for rank in range(world))


LAUNCH = ("accelerate", "launch", "--cpu", "--num_processes", "1", "--mixed_precision", "bf16")
LIGHTNING = "lightning_trainer.py"
CASES = (
    test_script("test_cli"),
    test_script("test_ops"),
    test_script("test_script"),
    test_script("test_sync"),
    Case(
        "accelerate",
        "`accelerate launch` as the worker",
        ("--no-python", "{bin}/" + LAUNCH[0], *LAUNCH[1:], "accelerate_loop.py"),
        ranks(2, "4 steps, mixed precision bf16"),
    ),
    Case("lightning", "`Trainer(strategy='ddp')`", (LIGHTNING,), ranks(2, "16 steps")),
    Case(
        "lightning",
        "`Trainer(strategy='ddp')`",
        (LIGHTNING,),
        ranks(4, "8 steps"),
        nodes=2,
    ),
    Case(
        "lightning",
        "rank 1 raises, and the job restarts",
        ("--max-restarts=1", LIGHTNING, "fail"),
        ("ValueError: failed on purpose", *ranks(2, "16 steps")),
    ),
    Case("transformers", "`Trainer`, a tiny BERT", ("transformers_trainer.py",), ranks(2, "4 st")),
    Case("pytorch-ignite", "`idist.Parallel`", ("ignite_parallel.py",), ranks(2, "sum 1")),
    Case("pytorch-ignite", "`idist.Parallel`", ("ignite_parallel.py",), ranks(2, "sum 1"), 2, 1),
    Case("torchmetrics", "synced accuracy", ("torchmetrics_sync.py",), ranks(2, "accuracy 0.875")),
    Case("deepspeed", "`initialize`, 3 steps", ("deepspeed_steps.py",), ranks(2, "3 steps")),
    *(
        Case(framework, f"`{program}`", (program,), ranks(2, text), nodes, 2 // nodes, launcher)
        for framework, program, text in (
            ("accelerate", "accelerate_loop.py", "4 steps, mixed precision no"),
            ("lightning", LIGHTNING, "16 steps"),
            ("transformers", "transformers_trainer.py", "4 steps"),
            ("deepspeed", "deepspeed_steps.py", "3 steps"),
        )
        for launcher, nodes in ((Launcher.TORCHRUN, 2), (Launcher.PYTHON, 1))
    ),
)


def find_command(name: str) -> str:
    """Return the path of one of our commands: of this environment, else from PATH."""
    ours = Path(sysconfig.get_path("scripts"), name)
    path = str(ours) if ours.exists() else shutil.which(name)
    if path is None:
        sys.exit(f"{name} not found; install Rallypoint: pip install .")
    return path


def find_version(python: str, framework: str) -> str | None:
    """Return the version of a framework that an interpreter has."""
    found = subprocess.run(
        [python, "-c", FIND_VERSION, framework], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


@contextlib.contextmanager
def coordinator(folder: Path) -> Iterator[str]:
    """Run a coordinator on a free port; yield its address."""
    argv = [find_command("coordinator"), "--host=127.0.0.1", "--port=0"]
    with (
        open(folder / "coordinator.log", "w") as log,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.terminate()


def compose(case: Case, python: str, target: str) -> list[list[str]]:
    """Return the command of each node.

    Args:
        case: what to run.
        python: interpreter of the workers.
        target: host:port of a coordinator; empty: one node without one.
    """
    argv = [word.format(bin=Path(python).parent) for word in case.argv]
    workers = f"--nproc-per-node={case.workers}"
    if case.launcher is Launcher.PYTHON:
        return [[python, "from_python.py", case.argv[0].removesuffix(".py")]]
    if case.launcher is Launcher.TORCHRUN:
        flags = f"--nnodes={case.nodes} --rdzv-backend=rallypoint --rdzv-id=works-with".split()
        torchrun = [python, "-m", "torch.distributed.run", workers, f"--rdzv-endpoint={target}"]
        return [[*torchrun, *flags, *argv]] * case.nodes
    agent = [find_command("node-agent"), workers, "--log-level=warning"]
    if not target:
        return [[*agent, "--standalone", *argv]]
    job = f"--coordinator={target} --job-id=works-with --nnodes={case.nodes}".split()
    names = [f"--node-name=node-{number}" for number in range(case.nodes)]
    return [[*agent, *job, name, *argv] for name in names]


def run(case: Case, python: str, folder: Path) -> str:
    """Run a case on this machine, an agent per node; return what went wrong, or nothing."""
    ours = {"PYTHON_EXEC": python, "ACCELERATE_USE_CPU": "true", "PYTHONUNBUFFERED": "1"}
    env = {**os.environ, **ours}
    output = folder / "output"
    with contextlib.ExitStack() as stack:
        needs_coordinator = case.nodes > 1 or case.launcher is Launcher.TORCHRUN
        target = stack.enter_context(coordinator(folder)) if needs_coordinator else ""
        log = stack.enter_context(output.open("w"))
        agents = [
            subprocess.Popen(argv, env=env, cwd=PROGRAMS, stdout=log, stderr=log)
            for argv in compose(case, python, target)
        ]
        codes = await_all(agents)
    lines = output.read_text(errors="replace")
    missing = [text for text in case.expected if text not in lines]
    if any(codes):
        problem = f"exit codes {codes}"
    elif missing:
        problem = f"not printed: {missing}"
    else:
        return ""
    return "\n".join([problem, *lines.splitlines()[-TAIL_LINES:]])


def await_all(agents: Sequence[subprocess.Popen[bytes]]) -> list[int | str]:
    """Return the exit codes; an agent that takes too long is stopped, and its workers with it."""
    codes: list[int | str] = []
    for agent in agents:
        try:
            codes.append(agent.wait(LIMIT_S))
        except subprocess.TimeoutExpired:
            agent.terminate()
            agent.wait()
            codes.append(f"none in {LIMIT_S:g} s")
    return codes


def main() -> None:
    parser = argparse.ArgumentParser(description="Run training frameworks under Rallypoint.")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the workers")
    parser.add_argument("--only", default="", help="frameworks, separated by commas")
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    names = dict.fromkeys(case.framework for case in CASES)
    if unknown := only - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    versions = {
        name: find_version(arguments.python, name) for name in names if not only or name in only
    }
    for name, version in versions.items():
        if version is None:
            print(f"skipped {name}; to install it: {arguments.python} -m pip install {name}")
    has_rallypoint = find_version(arguments.python, "rallypoint") is not None
    if not has_rallypoint:
        print(f"skipped torchrun and Python: Rallypoint is not installed for {arguments.python}")
    print(f"\ntorch {find_version(arguments.python, 'torch')}\n")
    print("| framework | program | launcher | nodes x workers | result |")
    print("|---|---|---|---|---|")
    problems: list[str] = []
    for case in CASES:
        version = versions.get(case.framework)
        if version is None or (case.launcher is not Launcher.NODE_AGENT and not has_rallypoint):
            continue
        with tempfile.TemporaryDirectory() as folder:
            problem = run(case, arguments.python, Path(folder))
        result = "failed" if problem else "works"
        shape = f"{case.nodes} x {case.workers}"
        by, what = case.launcher.value, f"{case.framework} {version}"
        print(f"| {what} | {case.title} | {by} | {shape} | {result} |", flush=True)
        if problem:
            problems.append(f"{case.framework}, {case.title}, {by}, {shape}: {problem}")
    if problems:
        sys.exit("\n" + "\n\n".join(problems))


if __name__ == "__main__":
    main()
