"""What the nodes of a job share: a token of the launcher's, or what Slurm gives to all of them."""

from __future__ import annotations

import pytest

from rallypoint.cli.operator.common import Common
from rallypoint.cli.operator.connection import Target, choose_access
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.job_secret import with_job_secret

SLURM = {
    "SLURM_CLUSTER_NAME": "c",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_START_TIME": "100",
    "SLURM_NODEID": "0",
}


@pytest.mark.parametrize("access", [Access(token="t"), Access(token_file="/f")])
def test_token_of_the_launcher_counts_first(access: Access) -> None:
    """Also under Slurm."""
    assert with_job_secret(access, SLURM) == access


def test_without_slurm_there_is_none() -> None:
    """Then all who reach the port may join."""
    assert with_job_secret(PLAIN, {}) == PLAIN
    assert with_job_secret(PLAIN, {"SLURM_CLUSTER_NAME": "c"}) == PLAIN


def test_nodes_of_a_slurm_job_share_one() -> None:
    """Whatever differs between nodes and steps does not count; another job has another one."""
    own = with_job_secret(PLAIN, SLURM).token

    assert own == with_job_secret(PLAIN, SLURM | {"SLURM_NODEID": "1", "SLURM_STEP_ID": "3"}).token
    for name in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_JOB_START_TIME"):
        assert with_job_secret(PLAIN, SLURM | {name: "other"}).token != own
    assert own not in repr(with_job_secret(PLAIN, SLURM))


def test_command_in_a_slurm_job_has_its_secret() -> None:
    """A hosted coordinator of the job admits it; a token counts before."""
    target = Target("h:1", "--coordinator")
    own = with_job_secret(PLAIN, SLURM).token

    assert choose_access(Common(), target, SLURM).token == own
    assert choose_access(Common(), target, SLURM | {"RALLYPOINT_TOKEN": "t"}).token == "t"
    assert choose_access(Common(), target, {}).token == ""
