"""The batch scripts for Slurm, with stand-ins for its commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rallypoint.base import exit_codes
from support.deploy.manifests import REPOSITORY

SCRIPT = REPOSITORY / "examples" / "slurm" / "requeue.sbatch"
STAND_INS = {
    "mcookie": "echo secret",
    "scontrol": '[ "$1" = requeue ] && echo "$2" >> "$REQUEUED"; echo node1',
    "srun": 'exit "$CODE"',
}
LIMIT_S = 60


@pytest.mark.parametrize(
    ("code", "restarts", "is_requeued"),
    [
        (0, 0, False),
        (exit_codes.EXIT_FAILED, 0, True),
        (exit_codes.EXIT_FAILED, 1, True),
        (exit_codes.EXIT_FAILED, 2, False),
        (exit_codes.EXIT_USAGE, 0, False),
        (exit_codes.EXIT_UNREACHABLE, 0, True),
        (exit_codes.EXIT_DENIED, 0, False),
        (exit_codes.EXIT_NO_REQUEUE, 0, False),
        (exit_codes.EXIT_CANCELLED, 0, False),
        (exit_codes.EXIT_SIGNAL_BASE + 9, 0, True),
        (exit_codes.EXIT_SIGNAL_BASE + 15, 0, True),
    ],
)
def test_only_what_a_requeue_can_cure_is_queued_again(
    tmp_path: Path, code: int, restarts: int, *, is_requeued: bool
) -> None:
    """Neither a cancelled job, nor wrong flags, nor a token that is not accepted."""
    for name, body in STAND_INS.items():
        stand_in = tmp_path / name
        stand_in.write_text(f"#!/bin/bash\n{body}\n")
        stand_in.chmod(0o755)
    requeued = tmp_path / "requeued"
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_RESTART_COUNT": str(restarts),
        "REQUEUED": str(requeued),
        "CODE": str(code),
    }
    done = subprocess.run(["bash", str(SCRIPT)], env=env, timeout=LIMIT_S, check=False)

    assert done.returncode == code, "Slurm sees how the job ended"
    assert requeued.exists() == is_requeued
