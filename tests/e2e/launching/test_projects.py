"""Projects that call torchrun themselves, in scripts and programs that need no edit."""

from __future__ import annotations

import sys

from support.processes.commands import Command
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, World

SCRIPT = """\
#!/bin/bash
NUM_PROC=$1
shift
torchrun --nproc_per_node=$NUM_PROC train.py "$@"
"""
"""Of the shape of timm's distributed_train.sh."""
ENDPOINT_SCRIPT = """\
echo "Launching ${1:-train.py} with ${2:-2} workers"
torchrun --nnodes=1 --nproc_per_node=${2:-4} --rdzv_id=101 --rdzv_endpoint="localhost:PORT" \\
    ${1:-train.py} ${3:+"$3"}
"""
"""Of the shape of the run_example.sh of pytorch/examples."""
PROGRAM = """\
import subprocess
import sys

launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
sys.exit(subprocess.run([*launcher, "--master_port", "1", "train.py", *sys.argv[1:]]).returncode)
"""
"""Of the shape of the launchers in the packages of YOLO."""
ARGUMENTS = ("--lr=0.1", "two words")


def write(world: World, name: str, text: str) -> str:
    """Write a script of the project beside its train.py; return its path."""
    (world.folder / "train.py").symlink_to(OBEDIENT)
    path = world.folder / name
    path.write_text(text)
    return str(path)


def end_two(world: World, project: Command) -> list[Worker]:
    """Wait for both workers of a project, let the job succeed, and return them."""
    workers = world.mailbox.workers(2)
    for worker in workers:
        worker.tell("exit", "0")
    assert project.wait() == 0, project.stderr()
    assert [worker.env["WORLD_SIZE"] for worker in workers] == ["2", "2"]
    assert len(project.events("job_succeeded")) == 1
    return workers


def test_script_finds_a_link_called_torchrun(world: World) -> None:
    """It is not edited, and its arguments reach the workers as they were."""
    script = write(world, "distributed_train.sh", SCRIPT)
    project = world.start("script", ["bash", script, "2", *ARGUMENTS], world.with_torchrun_link())

    workers = end_two(world, project)

    assert [worker.argv for worker in workers] == [ARGUMENTS] * 2


def test_script_with_an_endpoint_finds_a_link_called_torchrun(world: World) -> None:
    """A coordinator of the job serves at its endpoint, and leaves with the job."""
    text = ENDPOINT_SCRIPT.replace("PORT", str(world.ports.reserve()))
    script = write(world, "run_example.sh", text)
    argv = ["bash", script, "train.py", "2", ARGUMENTS[1]]
    project = world.start("script", argv, world.with_torchrun_link())

    workers = end_two(world, project)

    assert [worker.argv for worker in workers] == [ARGUMENTS[1:]] * 2
    assert {worker.env["TORCHELASTIC_RUN_ID"] for worker in workers} == {"101"}
    assert world.left() == []


def test_program_starts_the_module(world: World) -> None:
    """Two words replace the name of torch's module in the list of a `subprocess`."""
    text = PROGRAM.replace('"torch.distributed.run"', '"rallypoint", "agent"')
    program = write(world, "launch.py", text)
    project = world.start("program", [sys.executable, program, *ARGUMENTS])

    workers = end_two(world, project)

    assert [worker.argv for worker in workers] == [ARGUMENTS] * 2


def test_older_launcher_is_replaced(world: World) -> None:
    """Its flag is accepted, and scripts that want `--local-rank` can be given it."""
    write(world, "unused.sh", "")
    launcher = [sys.executable, "-m", "rallypoint", "agent", "--nproc_per_node=2", "--use_env"]
    project = world.start("module", [*launcher, "train.py", "--local-rank=${local_rank}"])

    workers = end_two(world, project)

    assert [worker.argv for worker in workers] == [("--local-rank=0",), ("--local-rank=1",)]


def test_package_of_the_agent_says_what_to_run(world: World) -> None:
    """One line, and exit code 2."""
    done = world.run(sys.executable, "-m", "rallypoint.agent", "--nproc-per-node=2", "train.py")

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith("the agent is started by: python -m rallypoint agent")
