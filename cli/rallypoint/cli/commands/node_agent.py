"""`node-agent`: run this node's workers of a job."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence

from rallypoint.cli.flags import (
    Parser,
    add_common_flags,
    endpoint,
    exit_codes,
    fail,
    label,
    natural_int,
    node_range,
    positive_int,
    seconds_ms,
    signal_number,
)

PROG = "node-agent"
JOB_ID_BYTES_MAX = 255
EXIT_NO_REQUEUE = 93
"""As the agent has it; repeated here because importing it would import gRPC."""
FENCE_BEYOND_GRACE_MS = 3_000
"""And three heartbeats, if that is longer: a fence may not fall because of one that was late."""
HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 100, 300_000
LEASE_MS_MIN, LEASE_MS_MAX = 1_500, 3_600_000
"""As the coordinator has them."""


def build_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        prog=PROG,
        usage="node-agent (--coordinator HOST:PORT | --standalone) [options] script [args ...]",
        description="Runs this node's workers of an elastic PyTorch job.",
        epilog="Exit codes: 0 the job succeeded, or an operator drained this node; 1 it failed; 2 "
        f"bad usage; 75 no coordinator answered in time; {EXIT_NO_REQUEUE} it failed, never "
        "requeue it; 128+n ended by signal n.",
    )
    where = parser.add_argument_group("where")
    where.add_argument("--coordinator", type=endpoint, help="host:port of the coordinator")
    where.add_argument(
        "--standalone", action="store_true", help="single node with a coordinator of its own"
    )
    where.add_argument(
        "--job-id",
        "--rdzv-id",
        dest="job_id",
        metavar="ID",
        help="name of the job, the same on every node",
    )
    where.add_argument(
        "--launch-id", default="", metavar="ID", help="name of this launch of the job"
    )
    where.add_argument(
        "--node-name", metavar="NAME", help="name of this node (default: the host name)"
    )
    where.add_argument(
        "--node-rank", type=natural_int, metavar="N", help="place among the nodes (default: any)"
    )
    where.add_argument(
        "--local-addr", metavar="ADDR", help="address of this node for workers elsewhere"
    )
    where.add_argument(
        "--label", type=label, action="append", default=[], metavar="KEY=VALUE", help="repeatable"
    )
    _add_job_flags(parser)
    what = parser.add_argument_group("what")
    what.add_argument("-m", "--module", action="store_true", help="run the script as python -m")
    what.add_argument("--no-python", action="store_true", help="run the program itself")
    what.add_argument("script", help="the program of every worker")
    what.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    add_common_flags(parser)
    return parser


def _add_job_flags(parser: Parser) -> None:
    """Add what the job's specification is made of: the same on every node."""
    job = parser.add_argument_group(
        "job (the same on every node, except workers, role, drains and --coordinator-timeout)"
    )
    add = job.add_argument
    add(
        "--nnodes",
        type=node_range,
        default=(1, 1),
        metavar="MIN:MAX",
        help="nodes of a round (default: 1)",
    )
    add(
        "--nproc-per-node",
        type=positive_int,
        default=1,
        metavar="N",
        help="workers here (default: 1)",
    )
    add("--role", default="default", metavar="NAME", help="role of the workers here")
    add(
        "--max-restarts",
        type=natural_int,
        default=0,
        metavar="N",
        help="for the whole job (default: 0)",
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
        ("--last-call", 5_000, "to wait for more than MIN, anew with every arrival (5)"),
        ("--settle-time", 5_000, "to collect newcomers, anew with every arrival (5)"),
        ("--grow-after", 10_000, "that a round lives before it is stopped to grow (10)"),
        ("--shutdown-timeout", 30_000, "from the stop signal to SIGKILL (30)"),
        ("--restart-backoff", 1_000, "before the third restart in a row; doubles; 0: none (1)"),
        ("--progress-after", 300_000, "that a round lives to have made progress (300)"),
        ("--quarantine-window", 600_000, "for which a failure of a node counts (600)"),
        ("--quarantine-cooldown", 300_000, "that a node is set aside; doubles (300)"),
        ("--fence-after", 0, "until a lost node's workers are dead; at least the grace + 3 (off)"),
        ("--heartbeat-interval", None, "between signs of life, 0.1 to 300 (the coordinator's: 1)"),
        ("--lease", None, "a silent node counts as alive, 1.5 to 3600 (the coordinator's: 5)"),
        ("--drain-timeout", 0, "workers go on after a SIGTERM to this agent; 0: stop them (0)"),
        ("--coordinator-timeout", None, "to do without a coordinator (default: the join timeout)"),
    ):
        add(name, type=seconds_ms, default=default_ms, metavar="S", help=f"seconds {meaning}")
    add(
        "--drain-signal",
        type=signal_number,
        default=signal.SIGTERM,
        metavar="NAME",
        help="tells workers that their node drains (default: SIGTERM)",
    )
    add("--no-grow", action="store_true", help="never stop a round to take newcomers in")


def main(argv: Sequence[str]) -> int:
    """Parse `argv`, take part in the job, and return the exit code."""
    args = build_parser().parse_args(_with_dashes(argv))
    _check(args)
    # The helper process is started before gRPC is imported: from then on nothing here may fork.
    from rallypoint.agent.process import WorkerHost

    host = WorkerHost.launch()
    from rallypoint.cli.commands.agent_session import run_session

    return run_session(args, resolve_job_id(args, os.environ), host)


def _with_dashes(argv: Sequence[str]) -> list[str]:
    """Spell our flags with dashes, as far as the script: torchrun takes `--a_b` too."""
    found: list[str] = []
    for position, word in enumerate(argv):
        if not word.startswith("-") and (position == 0 or not _takes_value(argv[position - 1])):
            return [*found, *argv[position:]]
        name, equals, value = word.partition("=")
        found.append(name.replace("_", "-") + equals + value if word.startswith("--") else word)
    return found


_SWITCHES = frozenset(
    {"--standalone", "--no-grow", "-m", "--module", "--no-python", "-h", "--help", "--version"}
)


def _takes_value(word: str) -> bool:
    return word.startswith("-") and "=" not in word and word.replace("_", "-") not in _SWITCHES


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot work, before anything is started."""
    if args.standalone == (args.coordinator is not None):
        fail(PROG, "give either --coordinator HOST:PORT or --standalone")
    if args.standalone and args.nnodes != (1, 1):
        fail(PROG, "--standalone is for a single node: leave --nnodes away")
    both = set(args.no_retry_exit_codes) & set(args.no_requeue_exit_codes)
    if both:
        fail(
            PROG,
            f"exit code {min(both)} is in both --no-retry-exit-codes and --no-requeue-exit-codes",
        )
    _check_silence(args)
    if args.module and args.no_python:
        fail(PROG, "--module and --no-python exclude each other")
    if args.no_python and shutil.which(args.script) is None:
        fail(PROG, f"{args.script}: no such program; give a path or a name on PATH")
    if not args.module and not args.no_python and not os.path.isfile(args.script):
        fail(PROG, f"{args.script}: no such script in {os.getcwd()}")
    if args.job_id is None and resolve_job_id(args, os.environ) == "":
        fail(PROG, "a job of several nodes needs a name: give every node the same --job-id")
    if args.job_id is not None and not 0 < len(args.job_id.encode()) <= JOB_ID_BYTES_MAX:
        fail(PROG, f"--job-id must have 1 to {JOB_ID_BYTES_MAX} bytes")


def _check_silence(args: argparse.Namespace) -> None:
    """Refuse heartbeats, leases and fences that the coordinator would refuse."""
    for flag, asked_ms, low_ms, high_ms in (
        ("--heartbeat-interval", args.heartbeat_interval, HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX),
        ("--lease", args.lease, LEASE_MS_MIN, LEASE_MS_MAX),
    ):
        if asked_ms is not None and not low_ms <= asked_ms <= high_ms:
            fail(PROG, f"{flag} must be {low_ms / 1000:g} to {high_ms / 1000:g} seconds")
    beats_ms = min(3 * (args.heartbeat_interval or 1_000), args.lease or 3 * HEARTBEAT_MS_MAX)
    beyond_ms = max(FENCE_BEYOND_GRACE_MS, beats_ms)
    least_ms = args.shutdown_timeout + beyond_ms
    if 0 < args.fence_after < least_ms:
        how = f"--shutdown-timeout + {beyond_ms / 1000:g}"
        fail(PROG, f"--fence-after must be at least {least_ms / 1000:g}: {how}")


def resolve_job_id(args: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Return the job's name: the given one, else Slurm's, else a fresh one for a single node.

    Returns:
        The name; empty for a job of several nodes that has none.
    """
    if args.job_id is not None:
        return str(args.job_id)
    if args.nnodes[1] == 1:
        return f"job-{os.urandom(6).hex()}"
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    return f"slurm-{job}.{step or 0}" if job else ""


def python_program(args: argparse.Namespace) -> str:
    """Return the name under which the job's end is reported."""
    return os.path.basename(args.script) or sys.executable
