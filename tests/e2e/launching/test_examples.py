"""Ordinary training scripts run unchanged under torchrun and under node-agent.

Both scripts compute the same with the same number of workers, so their output is compared to the
digit, also between an interrupted run and an uninterrupted one.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from support.processes.commands import NODE_AGENT, Command
from support.processes.world import WORKERS, World
from support.tries.commit import choose_long

EXAMPLES = Path(__file__).parents[3] / "examples"
DDP, ELASTIC, SHARED = "train_ddp.py", "train_elastic.py", "train_shared.py"
MISHAP = str(WORKERS / "mishap.py")
TORCHRUN = str(Path(sysconfig.get_path("scripts"), "torchrun"))
TWO = ("--nproc-per-node", "2")
WATCHED = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
LIMIT_S = 200.0
"""For one run: the import of torch takes most of it, and more on a busy machine."""


OF_DDP, OF_ELASTIC = (choose_long("examples", at, 2) for at in range(2))
"""The long tests run one of both with each commit: each run imports torch two or three times."""


def lines_of(command: Command) -> list[str]:
    """Wait for a command to succeed; return all that its workers printed."""
    assert command.wait(LIMIT_S) == 0, command.stderr()
    command.drain()
    return command.stdout().splitlines()


@pytest.fixture(scope="module")
def under_torchrun(shared_world: World) -> Callable[[str], list[str]]:
    """The output of a script under torchrun, which runs it once."""
    # torchrun makes a folder for logs that it does not remove.
    env = {"TMPDIR": str(shared_world.folder), **WATCHED}

    @cache
    def run(script: str) -> list[str]:
        words = [TORCHRUN, "--standalone", *TWO, str(EXAMPLES / script)]
        return lines_of(shared_world.start(f"torchrun {script}", words, env))

    return run


def start(world: World, script: Sequence[str], *flags: str, watched: bool = False) -> Command:
    """Start node-agent with two workers."""
    where = flags or (f"--coordinator={world.target}",)
    return world.start("agent", [NODE_AGENT, *where, *TWO, *script], WATCHED if watched else None)


@pytest.mark.parametrize(
    "script", [pytest.param(DDP, marks=OF_DDP), pytest.param(ELASTIC, marks=OF_ELASTIC)]
)
def test_script_does_the_same_under_both_launchers(
    world: World, under_torchrun: Callable[[str], list[str]], script: str
) -> None:
    """It exits with 0, with the losses and the accuracy of torchrun's workers. Those that crash
    below run with `--standalone`, this one at a coordinator."""
    agent = start(world, [str(EXAMPLES / script)])
    lines = lines_of(agent)

    assert lines[-1].startswith("test accuracy 0.9")
    assert [line for line in lines if not line.startswith("restart")] == [
        line for line in under_torchrun(script) if not line.startswith("restart")
    ]
    assert world.left() == []


@pytest.mark.parametrize(
    ("script", "kind", "step", "resumed"),
    [
        # An epoch has 23 steps of one script, and 16 of the other.
        pytest.param(*(DDP, "die", 50, "resuming after epoch 2"), marks=OF_DDP, id="ddp is killed"),
        pytest.param(
            *(ELASTIC, "raise", 40, "restart 1: 2 workers resume after epoch 2"),
            marks=OF_ELASTIC,
            id="elastic raises",
        ),
    ],
)
def test_script_resumes_after_a_crash(
    world: World,
    under_torchrun: Callable[[str], list[str]],
    script: str,
    kind: str,
    step: int,
    resumed: str,
) -> None:
    """It resumes from its checkpoint and ends with the same result."""
    words = [MISHAP, kind, str(step), str(EXAMPLES / script), f"--checkpoint={world.folder}/saved"]
    agent = start(world, words, "--standalone", "--max-restarts=1")
    lines = lines_of(agent)

    assert [line for line in lines if "resum" in line] == [resumed]
    assert [line for line in lines if line.startswith(("epoch", "test"))] == [
        line for line in under_torchrun(script) if line.startswith(("epoch", "test"))
    ]
    assert world.left() == []


@OF_DDP  # one example more for each commit
def test_shared_values_outlive_a_crash(world: World) -> None:
    """The script that uses `rallypoint.worker` resumes, and finds the keys of its run."""
    words = [MISHAP, "die", "70", str(EXAMPLES / SHARED), "--steps=120"]
    flags = (f"--coordinator={world.target}", f"--job-id={world.job_id}", "--max-restarts=1")
    lines = lines_of(start(world, words, *flags))

    assert [line for line in lines if line.startswith("round")] == [
        "round 1 of this run: 2 workers begin at step 0",
        "round 2 of this run: 2 workers begin at step 50",
    ]
    assert lines[-1].startswith("test accuracy 0.8")
    assert world.left() == []


@OF_ELASTIC
def test_timers_are_served_as_torchruns_are(
    world: World, under_torchrun: Callable[[str], list[str]]
) -> None:
    """A worker that outlives its timer is ended, and the job resumes; torchrun's would end.

    Both launchers set the variable for timers, and the script prints whether it found it.
    """
    hanging = [MISHAP, "hang", "40", str(EXAMPLES / ELASTIC), f"--checkpoint={world.folder}/saved"]
    flags = ("--standalone", "--max-restarts=1")
    agent = start(world, [*hanging, "--step-limit=4"], *flags, watched=True)
    lines = lines_of(agent)

    assert under_torchrun(ELASTIC)[0] == "restart 0: 2 workers begin, each step is bounded"
    assert lines[0] == under_torchrun(ELASTIC)[0]
    assert "restart 1: 2 workers resume after epoch 2, each step is bounded" in lines
    assert lines[-1] == under_torchrun(ELASTIC)[-1]
    assert world.left() == []
