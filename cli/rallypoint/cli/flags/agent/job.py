"""The specification of the job: how it restarts, grows, and notices failures."""

from __future__ import annotations

from collections.abc import Callable

from rallypoint.base.exit_codes import EXIT_NO_REQUEUE
from rallypoint.base.limits import (
    BEATS_PER_LEASE,
    FENCE_BEYOND_SHUTDOWN_MS,
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
)
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail
from rallypoint.cli.flags.values import (
    exit_codes,
    natural_int,
    node_range,
    positive_seconds_ms,
    seconds_ms,
)


def _seconds(
    name: str,
    default_ms: int | None,
    help: str,
    *,
    parse: Callable[[str], int] = seconds_ms,
    default_text: str = "",
    torchrun: str = "",
) -> Flag:
    if default_ms is not None and not default_text:
        default_text = f"{default_ms / 1000:g}"
    return Flag(
        names=(name,),
        parse=parse,
        metavar="SECONDS",
        default=default_ms,
        default_text=default_text,
        torchrun=torchrun,
        help=help,
    )


def _number(name: str, default: int, help: str) -> Flag:
    return Flag(
        names=(name,),
        parse=natural_int,
        metavar="N",
        default=default,
        default_text=str(default),
        help=help,
    )


def _exit_codes(name: str, help: str) -> Flag:
    return Flag(names=(name,), parse=exit_codes, metavar="N,…", default=(), help=help)


_SAME = "These must be the same on every node."
NNODES = Flag(
    names=("--nnodes",),
    parse=node_range,
    metavar="N or MIN:MAX",
    default=(1, 1),
    default_text="1",
    help="number of nodes",
)
JOINING = Group(
    "Joining and growing",
    (
        NNODES,
        _seconds(
            "--join-timeout",
            600_000,
            "how long to wait for MIN nodes",
            parse=positive_seconds_ms,
        ),
        _seconds(
            "--last-call",
            5_000,
            "how long the first round waits for nodes beyond MIN; each arrival restarts the timer, "
            "up to six times",
            torchrun="30",
        ),
        Flag(names=("--no-grow",), help="never stop a running round to add nodes"),
        _seconds(
            "--settle-time",
            5_000,
            "how long a running round waits for more new nodes before it grows; each arrival "
            "restarts the timer",
        ),
        _seconds("--grow-after", 10_000, "minimum age of a round before it is stopped to grow"),
    ),
    _SAME,
)
RESTARTS = Group(
    "Restarts and failing nodes",
    (
        _number(
            "--max-restarts",
            0,
            "restarts after failures, counted for the whole job (torchrun: for each agent)",
        ),
        _seconds(
            "--restart-backoff",
            1_000,
            "pause before the third restart in a row; doubles with each further one; 0: none",
        ),
        _number(
            "--crash-loop", 5, "identical early failures in a row that end the job; 0: no limit"
        ),
        _number(
            "--max-reformations",
            10,
            "re-formed rounds in a row without progress, and without a restart, that end the job",
        ),
        _seconds(
            "--progress-after",
            300_000,
            "how long a round must run to count as progress, which resets the counts above",
        ),
        _exit_codes(
            "--no-retry-exit-codes", "worker exit codes that end the job without a restart"
        ),
        _exit_codes(
            "--no-requeue-exit-codes",
            f"the same, and the agent exits with {EXIT_NO_REQUEUE}, so that a scheduler does not "
            "requeue the job",
        ),
        _number(
            "--quarantine-after",
            3,
            "failures of one node within the window after which it is quarantined; 0: never",
        ),
        _seconds("--quarantine-window", 600_000, "the window in which these failures count"),
        _seconds(
            "--quarantine-cooldown",
            300_000,
            "how long a node is quarantined; doubles with each further quarantine",
        ),
    ),
    _SAME,
)
DETECTION = Group(
    "Lost nodes and shutdown",
    (
        _seconds(
            "--heartbeat-interval",
            None,
            "time between two heartbeats of an agent",
            default_text="1, set by the coordinator",
            torchrun="5",
        ),
        _seconds(
            "--lease",
            None,
            "how long a silent node counts as alive",
            default_text="5, set by the coordinator",
            torchrun="15",
        ),
        _seconds(
            "--fence-after",
            0,
            "time for a lost agent to kill its workers, before a round begins without it; "
            "at least --shutdown-timeout + 3, with several coordinators + 8; 0: off",
        ),
        _seconds(
            "--shutdown-timeout", 30_000, "time from the stop signal to SIGKILL, for every stop"
        ),
        _seconds(
            "--coordinator-timeout",
            None,
            "how long an agent without running workers does without a coordinator; may differ "
            "between nodes",
            parse=positive_seconds_ms,
            default_text="--join-timeout",
        ),
        _seconds(
            "--outcome-timeout",
            300_000,
            "how long an agent whose workers all exited with 0 waits for a coordinator to confirm "
            "the outcome; may differ between nodes",
        ),
    ),
    "These must be the same on every node, except --coordinator-timeout and --outcome-timeout.",
)
GROUPS = (JOINING, RESTARTS, DETECTION)


def check(args: Values) -> None:
    """Reject values that contradict each other."""
    both = set(args.no_retry_exit_codes) & set(args.no_requeue_exit_codes)
    if both:
        fail(
            args.prog,
            f"exit code {min(both)} is in both --no-retry-exit-codes and --no-requeue-exit-codes",
        )
    _check_detection(args)


def _check_detection(args: Values) -> None:
    """Reject heartbeats, leases and fences that the coordinator would reject."""
    for dest, value_ms, low_ms, high_ms in (
        ("heartbeat_interval", args.heartbeat_interval, HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX),
        ("lease", args.lease, LEASE_MS_MIN, LEASE_MS_MAX),
    ):
        if value_ms is not None and not low_ms <= value_ms <= high_ms:
            flag = args.source(dest)
            fail(args.prog, f"{flag} must be {low_ms / 1000:g} to {high_ms / 1000:g} seconds")
    beats_ms = min(
        BEATS_PER_LEASE * (args.heartbeat_interval or 1_000),
        args.lease or BEATS_PER_LEASE * HEARTBEAT_MS_MAX,
    )
    beyond_ms = max(FENCE_BEYOND_SHUTDOWN_MS, beats_ms)
    least_ms = args.shutdown_timeout + beyond_ms
    if 0 < args.fence_after < least_ms:
        how = f"--shutdown-timeout + {beyond_ms / 1000:g}"
        fail(args.prog, f"--fence-after must be at least {least_ms / 1000:g}: {how}")
