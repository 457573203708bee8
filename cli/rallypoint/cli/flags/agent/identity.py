"""Which coordinator, which job, and which node."""

from __future__ import annotations

from rallypoint.base.limits import JOB_ID_BYTES_MAX
from rallypoint.base.values import text
from rallypoint.cli.flags.agent.job import option_flag
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail
from rallypoint.cli.flags.values import endpoints, label

GROUPS = (
    Group(
        "Job and node",
        (
            Flag(
                names=("--coordinator",),
                parse=endpoints,
                metavar="HOST:PORT,…",
                help="address of the coordinator, or of several that share a store",
                default_text="a built-in one, or one of the job's own; port 50051",
            ),
            Flag(
                names=("--job-id",),
                parse=text,
                metavar="ID",
                help="name of the job, the same on every node",
                default_text="random for a single node, else from Slurm or --master-addr",
            ),
            Flag(
                names=("--standalone",),
                help="run a single node with a built-in coordinator, or as a separate job on "
                "--coordinator",
            ),
            Flag(
                names=("--launch-id",),
                parse=text,
                metavar="ID",
                default="",
                help="name of this launch of the job; a late agent of a finished launch reports "
                "its outcome instead of starting a new run",
                default_text="under srun: Slurm's job, step and restart count",
            ),
            option_flag("node_name"),
            option_flag("rank"),
            Flag(
                names=("--local-addr",),
                parse=text,
                metavar="ADDR",
                help="address at which other nodes reach this node's workers",
                default_text="the one that routes to the coordinator",
                torchrun="the host's full name",
            ),
            Flag(
                names=("--label",),
                parse=label,
                metavar="KEY=VALUE",
                is_repeatable=True,
                help="label of this node, shown with the job; repeatable",
            ),
        ),
    ),
)


def check(args: Values) -> None:
    """Reject job ids that the coordinator would reject."""
    for name, value in (("--job-id", args.job_id), ("--rdzv-id", args.rdzv_id)):
        if value is None:
            continue
        if not 0 < len(value.encode()) <= JOB_ID_BYTES_MAX:
            fail(args.prog, f"{name} must have 1 to {JOB_ID_BYTES_MAX} bytes")
        if not value.isprintable():
            fail(args.prog, f"{name}: {value!r} is not printable")
