"""What the nodes of a job share, so that a hosted coordinator admits them and no others. Pure.

The launcher shares it as RALLYPOINT_TOKEN, or as a token file. Slurm gives every node of a job the
same variables. What follows from them keeps other jobs and stray agents out. It is no secret to a
user who reads Slurm's records: against those a token helps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from msgspec.structs import replace

from rallypoint.wire.access import Access

SLURM_PREFIX = "slurm-"
"""What a token that follows from a Slurm job begins with."""
_SLURM = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_JOB_START_TIME")
"""The same on all nodes and in all steps of a job. A job that is requeued has another start."""


def with_job_secret(access: Access, environment: Mapping[str, str]) -> Access:
    """Return how a node, or a command of its job, proves itself to a hosted coordinator.

    Args:
        access: what its flags and variables say.
        environment: of the agent, or of a command in the same job.
    """
    if access.token or access.token_file or not environment.get("SLURM_JOB_ID"):
        return access
    words = "\0".join(environment.get(name, "") for name in _SLURM)
    digest = hashlib.sha256(f"rallypoint hosted coordinator\0{words}".encode()).hexdigest()
    return replace(access, token=f"{SLURM_PREFIX}{digest}")
