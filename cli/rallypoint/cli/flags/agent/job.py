"""The specification of the job: how it restarts, grows, and notices failures."""

from __future__ import annotations

from rallypoint.agent.launch.options import OPTIONS, SECONDS, JobOptions
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail
from rallypoint.cli.flags.values import node_range

_DEFAULTS = JobOptions()


def option_flag(name: str) -> Flag:
    """Return the flag of an option."""
    option, default = OPTIONS[name], getattr(_DEFAULTS, name)
    flag = option.flag or f"--{name.replace('_', '-')}"
    if not option.unit:
        return Flag(names=(flag,), help=option.help)
    shown = option.default_text
    if not shown and isinstance(default, int):
        shown = f"{default / 1000:g}" if option.unit == SECONDS else str(default)
    return Flag(
        names=(flag,),
        parse=option.parse,
        metavar=option.unit,
        default=default,
        default_text=shown,
        torchrun=option.torchrun,
        help=option.help,
    )


def read_options(args: Values) -> JobOptions:
    """Return the options that the flags set, and those of --rdzv-conf that have no flag."""
    values = {name: getattr(args, name) for name in OPTIONS if hasattr(args, name)}
    return JobOptions(**values, grow=not args.no_grow, rank=args.node_rank)


_SAME = "These must be the same on every node."
NNODES = Flag(
    names=("--nnodes",),
    parse=node_range,
    metavar="N or MIN:MAX",
    default=(1, 1),
    default_text="1",
    help="number of nodes",
)
_JOINING = ("join_timeout", "last_call", "grow", "settle_time", "grow_after")
_RESTARTS = (
    "max_restarts",
    "restart_backoff",
    "crash_loop",
    "max_reformations",
    "progress_after",
    "no_retry_exit_codes",
    "no_requeue_exit_codes",
    "quarantine_after",
    "quarantine_window",
    "quarantine_cooldown",
)
_DETECTION = (
    "heartbeat_interval",
    "lease",
    "fence_after",
    "shutdown_timeout",
    "coordinator_timeout",
    "outcome_timeout",
)
_HANGS = ("hang_after", "hang_first_after", "hang_action")
GROUPS = (
    Group("Joining and growing", (NNODES, *map(option_flag, _JOINING)), _SAME),
    Group("Restarts and failing nodes", tuple(map(option_flag, _RESTARTS)), _SAME),
    Group(
        "Lost nodes and shutdown",
        tuple(map(option_flag, _DETECTION)),
        "These must be the same on every node, except --coordinator-timeout and --outcome-timeout.",
    ),
    Group("Hangs", tuple(map(option_flag, _HANGS)), _SAME),
)


def check(args: Values) -> None:
    """Reject values that contradict each other."""
    conflict = read_options(args).find_conflict()
    if conflict:
        fail(args.prog, conflict)
