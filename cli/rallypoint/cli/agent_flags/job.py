"""What the job's specification is made of: the same on every node, but for a few of the node's."""

from __future__ import annotations

import argparse

from rallypoint.cli.flags import (
    Parser,
    exit_codes,
    fail,
    how_given,
    natural_int,
    node_range,
    plain,
    seconds_ms,
)

EXIT_NO_REQUEUE = 93
"""As the agent has it; repeated here because importing it would import gRPC."""
FENCE_BEYOND_GRACE_MS = 3_000
"""And three heartbeats, if that is longer: a fence may not fall because of one that was late."""
HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 100, 300_000
LEASE_MS_MIN, LEASE_MS_MAX = 1_500, 3_600_000
"""As the coordinator has them."""


def add(parser: Parser) -> None:
    """Add the flags."""
    job = parser.add_argument_group(
        "job (the same on every node, except workers, role and --coordinator-timeout)"
    )
    add = job.add_argument
    add(
        "--nnodes",
        type=node_range,
        default=(1, 1),
        metavar="MIN:MAX",
        help="nodes of a round (default: 1)",
    )
    add("--role", type=plain, default="default", metavar="NAME", help="role of the workers here")
    add(
        "--max-restarts",
        type=natural_int,
        default=0,
        metavar="N",
        help="counted for the whole job (default: 0; torchrun: for each agent)",
    )
    for name, default, meaning in (
        ("--quarantine-after", 3, "failures of a node that set it aside; 0: never (3)"),
        ("--max-reformations", 10, "uncharged rounds in a row without progress (10)"),
        ("--crash-loop", 5, "equal early deaths in a row that end the run; 0: never (5)"),
    ):
        add(name, type=natural_int, default=default, metavar="N", help=meaning)
    for name, meaning in (
        ("--no-retry-exit-codes", "codes of workers that end the run at once"),
        ("--no-requeue-exit-codes", f"the same, and the agent exits {EXIT_NO_REQUEUE}"),
    ):
        add(name, type=exit_codes, default=(), metavar="N,…", help=meaning)
    for name, default_ms, meaning in (
        ("--join-timeout", 600_000, "to wait for MIN nodes (600)"),
        (
            "--last-call",
            5_000,
            "to wait for more than MIN, anew with every arrival (5; torchrun: 30)",
        ),
        ("--settle-time", 5_000, "to collect newcomers, anew with every arrival (5)"),
        ("--grow-after", 10_000, "that a round lives before it is stopped to grow (10)"),
        ("--shutdown-timeout", 30_000, "from the stop signal to SIGKILL, whatever the reason (30)"),
        ("--restart-backoff", 1_000, "before the third restart in a row; doubles; 0: none (1)"),
        ("--progress-after", 300_000, "that a round lives to have made progress (300)"),
        ("--quarantine-window", 600_000, "for which a failure of a node counts (600)"),
        ("--quarantine-cooldown", 300_000, "that a node is set aside; doubles (300)"),
        ("--fence-after", 0, "until a lost node's workers are dead; at least the grace + 3 (off)"),
        ("--heartbeat-interval", None, "between signs of life (the coordinator's: 1; torchrun: 5)"),
        ("--lease", None, "a silent node counts as alive (the coordinator's: 5; torchrun: 15)"),
        ("--coordinator-timeout", None, "to do without a coordinator (default: the join timeout)"),
    ):
        add(name, type=seconds_ms, default=default_ms, metavar="S", help=f"seconds {meaning}")
    add("--no-grow", action="store_true", help="never stop a round to take newcomers in")


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse values that contradict each other."""
    both = set(args.no_retry_exit_codes) & set(args.no_requeue_exit_codes)
    if both:
        fail(
            prog,
            f"exit code {min(both)} is in both --no-retry-exit-codes and --no-requeue-exit-codes",
        )
    _check_silence(args, prog)


def _check_silence(args: argparse.Namespace, prog: str) -> None:
    """Refuse heartbeats, leases and fences that the coordinator would refuse."""
    for dest, asked_ms, low_ms, high_ms in (
        ("heartbeat_interval", args.heartbeat_interval, HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX),
        ("lease", args.lease, LEASE_MS_MIN, LEASE_MS_MAX),
    ):
        if asked_ms is not None and not low_ms <= asked_ms <= high_ms:
            flag = how_given(args, dest)
            fail(prog, f"{flag} must be {low_ms / 1000:g} to {high_ms / 1000:g} seconds")
    beats_ms = min(3 * (args.heartbeat_interval or 1_000), args.lease or 3 * HEARTBEAT_MS_MAX)
    beyond_ms = max(FENCE_BEYOND_GRACE_MS, beats_ms)
    least_ms = args.shutdown_timeout + beyond_ms
    if 0 < args.fence_after < least_ms:
        how = f"--shutdown-timeout + {beyond_ms / 1000:g}"
        fail(prog, f"--fence-after must be at least {least_ms / 1000:g}: {how}")
