"""`node-agent`: run this node's workers of a job."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NoReturn

from rallypoint.cli.agent_flags import job, output, rendezvous, reports, signals, what, where
from rallypoint.cli.agent_flags.job import EXIT_NO_REQUEUE
from rallypoint.cli.flags import Parser, add_common_flags, fail
from rallypoint.cli.resolution import Unresolvable, resolve
from rallypoint.cli.variables import FURTHER

PROG = "node-agent"
SUBJECTS = (where, rendezvous, job, signals, output, reports, what)
"""In the order of --help."""


def build_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        prog=PROG,
        usage="node-agent [--coordinator HOST:PORT] [options] script [args ...]",
        description="Runs this node's workers of an elastic PyTorch job. Whatever torchrun takes "
        "is taken here, shortened or spelt --a_b as well.",
        epilog="Every flag has a variable, PET_ and its name: PET_NNODES=2:4, PET_STANDALONE=1, "
        "PET_LABEL=rack=7,row=2; the command line wins, and an empty variable is not set. "
        f"{' and '.join(FURTHER.values())} are read, too. "
        "Exit codes: 0 the job succeeded, or an operator drained this node; 1 it failed; 2 "
        f"bad usage; 75 no coordinator answered in time; {EXIT_NO_REQUEUE} it failed, never "
        "requeue it; 128+n ended by signal n.",
    )
    for subject in SUBJECTS:
        subject.add(parser)
    add_common_flags(parser)
    return parser


def main(argv: Sequence[str]) -> NoReturn:
    """Parse `argv`, take part in the job, and exit."""
    args = build_parser().read(argv, os.environ)
    for subject in SUBJECTS:
        subject.check(args, PROG)
    signals.ignore_telling(args)
    try:
        fresh = f"job-{os.urandom(6).hex()}"
        resolution = resolve(args, os.environ, fresh, socket.gethostname())
    except Unresolvable as error:
        fail(PROG, str(error))
    placement = what.place(args, PROG)
    # The helper process is started before gRPC is imported: from then on nothing here may fork.
    from rallypoint.agent.process import WorkerHost

    host = WorkerHost.launch()
    from rallypoint.cli.commands.agent_session import run_session

    run_session(args, resolution, placement, host)
