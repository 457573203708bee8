"""`node-agent`: read the flags, start the helper process, take part in the job."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from rallypoint.base.needs import find_folder_lack, find_kernel_lack, find_limit
from rallypoint.base.open_files import raise_file_limit
from rallypoint.cli.commands.agent.resolution import (
    Resolution,
    Unresolvable,
    resolve,
)
from rallypoint.cli.exit_codes import EXIT_CODES
from rallypoint.cli.flags.agent import (
    access,
    evidence,
    identity,
    job,
    output,
    preload,
    rendezvous,
    reports,
    signals,
    workload,
)
from rallypoint.cli.flags.common import HELP_GROUP
from rallypoint.cli.flags.flag import Values
from rallypoint.cli.flags.parser import Parser, fail
from rallypoint.cli.flags.variables import OTHER_VARIABLES

if TYPE_CHECKING:
    from rallypoint.agent.hosting.keeper import Keeper
    from rallypoint.base.console import Consoles
    from rallypoint.wire.access import Access

SUBJECTS = (
    *(identity, access, job, workload, preload),
    *(signals, evidence, output, reports, rendezvous),
)
"""In the order of --help."""
BASICS = (
    "--nproc-per-node",
    "--nnodes",
    "--rdzv-endpoint",
    "--coordinator",
    "--job-id",
    "--max-restarts",
)
EXAMPLES = (
    ("one node, two workers, three restarts", "--nproc-per-node 2 --max-restarts 3 train.py"),
    ("one worker per GPU, script as a module", "--nproc-per-node gpu -m package.train"),
    ("two nodes: run this on both", "--rdzv-endpoint node1 --nnodes 2 train.py"),
    ("two to four nodes", "--coordinator head --job-id run2 --nnodes 2:4 train.py"),
)


def build_parser(prog: str = "node-agent") -> Parser:
    """Return the parser of the command."""
    return Parser(
        prog=prog,
        summary="Run this node's workers of an elastic PyTorch job. Accepts every flag of "
        "torchrun, with the same short forms.",
        groups=(*(group for subject in SUBJECTS for group in subject.GROUPS), HELP_GROUP),
        takes_program=True,
        basics=BASICS,
        examples=EXAMPLES,
        notes=(
            "Variables: every flag has one: PET_ and its name in capitals, such as PET_NNODES=2:4, "
            "PET_STANDALONE=1 or PET_LABEL=rack=7,row=2. These are read too: "
            f"{', '.join(OTHER_VARIABLES.values())}. Flags win; an empty variable counts as not "
            "set.",
            f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES)}.",
        ),
    )


def main(prog: str, argv: Sequence[str]) -> NoReturn:
    """Parse `argv`, take part in the job, and exit."""
    args = build_parser(prog).read(argv, os.environ)
    for subject in SUBJECTS:
        subject.check(args)
    signals.ignore_notifications(args)
    _refuse(prog, find_kernel_lack())
    if not args.log_dir:
        _refuse(prog, find_folder_lack())
    try:
        fresh = f"job-{os.urandom(6).hex()}"
        resolution = resolve(args, os.environ, fresh, socket.gethostname())
    except Unresolvable as error:
        fail(prog, str(error))
    placement = workload.place(args)
    raise_file_limit()
    workers, hosts = placement.count.number, resolution.hosting is not None
    _refuse(prog, find_limit(workers, is_teed=bool(args.tee), hosts=hosts))
    # The helper process starts before gRPC is imported: after that this process must not fork.
    from rallypoint.agent.helper.host import WorkerHost

    host = WorkerHost.launch()
    proof = resolution.prove(lambda: access.read_access(args, os.environ), os.environ)
    keeper = _begin_hosting(prog, resolution, proof)
    consoles = _open_log(args)
    from rallypoint.wire.loading import load_grpc

    load_grpc(is_quiet=True)
    from rallypoint.cli.commands.agent.session import run_session

    run_session(args, resolution, placement, host, proof, keeper, consoles)


def _open_log(args: Values) -> Consoles:
    """Begin the log, before the imports of libraries that may have something to say."""
    from rallypoint.base.console import Consoles, open_text
    from rallypoint.cli.logs import configure_logs, take_python_logs

    consoles = Consoles.open()
    consoles.err.is_json = args.log_format == "json"
    configure_logs(args.log_level, args.log_format, open_text(consoles.err))
    take_python_logs()
    return consoles


def _refuse(prog: str, why: str) -> None:
    if why:
        fail(prog, why)


def _begin_hosting(prog: str, resolution: Resolution, proof: Access) -> Keeper | None:
    """Start the coordinator of the job, if this node hosts it, while the rest is imported."""
    if resolution.hosting is None:
        return None
    from rallypoint.agent.hosting.keeper import CannotHost, Keeper

    keeper = Keeper(resolution.hosting, proof)
    try:
        keeper.begin()
    except CannotHost as error:
        fail(prog, str(error))
    return keeper
