"""`coordinator`: serve until stopped by a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.flags.common import LOGS, ONE_HELP_GROUP
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import Parser
from rallypoint.cli.flags.values import journal_place, port_number, seconds_ms

if TYPE_CHECKING:
    from rallypoint.server.serve import Settings

GARBAGE_MIN = 20_000
"""Allocations between two runs of the garbage collector (Python: 700). A round of a thousand nodes
allocates a hundred times that many objects and leaves hardly any cyclic garbage."""

LISTENING = Group(
    "Listening",
    (
        Flag(
            names=("--host",),
            parse=str,
            metavar="ADDR",
            default="0.0.0.0",
            default_text="0.0.0.0, all addresses",
            help="address to listen on",
        ),
        Flag(
            names=("--port",),
            parse=port_number,
            metavar="PORT",
            default=50_051,
            default_text="50051",
            help="port to listen on; 0: any free one",
        ),
        Flag(
            names=("--startup-window",),
            parse=seconds_ms,
            metavar="SECONDS",
            default=2_500,
            default_text="2.5",
            help="how long agents may report running rounds before new ones begin; make it shorter "
            "only if no earlier coordinator ran here",
        ),
    ),
)
STATE = Group(
    "State",
    (
        Flag(
            names=("--state",),
            parse=journal_place,
            metavar="PLACE",
            default="",
            default_text="a file for each port in $XDG_STATE_HOME/rallypoint; with --port 0 memory",
            help="where to keep what must survive a restart: sqlite:PATH, a file on a local disk; "
            "or memory, which keeps nothing",
        ),
    ),
)


def build_parser(prog: str = "coordinator") -> Parser:
    """Return the parser of the command."""
    return Parser(
        prog=prog,
        summary="Serve elastic PyTorch jobs: own their membership, ranks and restarts.",
        groups=(LISTENING, STATE, LOGS, ONE_HELP_GROUP),
        examples=(
            ("listen on every address", "--port 50051"),
            ("on this machine only, any free port", "--host 127.0.0.1 --port 0"),
            ("with its journal on another disk", "--state sqlite:/data/rallypoint/journal.sqlite"),
        ),
        notes=(
            "Connections are neither encrypted nor authenticated: listen on a trusted network.",
            "After a restart the coordinator continues from its journal, and the agents report "
            "their running rounds; no worker restarts.",
        ),
    )


def main(prog: str, argv: Sequence[str]) -> int:
    """Parse `argv`, serve, and return the exit code."""
    args = build_parser(prog).read(argv, os.environ)
    from rallypoint.base.console import STALLED_S, Console, open_text
    from rallypoint.cli.logs import configure_logs

    console = Console(sys.stderr.fileno())
    configure_logs(args.log_level, args.log_format, open_text(console))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's C core would write its own lines
    try:
        return asyncio.run(_serve(args))
    finally:
        with suppress(KeyboardInterrupt):
            console.flush(STALLED_S)


async def _serve(args: Values) -> int:
    from rallypoint.server.core.model.spec import Timing
    from rallypoint.server.journal.interface import JournalFailed, JournalInUse
    from rallypoint.server.journal.open import describe_journal, open_journal
    from rallypoint.server.serve import CannotListen, Settings

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    timing = Timing(window_ms=args.startup_window)
    try:
        journal = open_journal(args.state, args.port)
        settings = Settings(args.host, args.port, timing, journal=journal)
        return await _serve_until(stop, settings, describe_journal(journal))
    except CannotListen as error:
        text = f"{error}: the port is in use, or the address is not this host's"
        print(f"{args.prog}: error: {text}", file=sys.stderr, flush=True)
        return EXIT_USAGE
    except JournalFailed as error:
        print(f"{args.prog}: error: {error}", file=sys.stderr, flush=True)
        return EXIT_USAGE if isinstance(error, JournalInUse) else 1


async def _serve_until(stop: asyncio.Event, settings: Settings, place: str) -> int:
    """Serve until asked to stop; return the exit code.

    Args:
        stop: set when the coordinator is asked to stop.
        settings: how it is started.
        place: where its journal is, as `--state` takes it.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
        JournalFailed: when the journal cannot be read, or not be written any more.
    """
    from rallypoint.base.log import get_logger
    from rallypoint.server.journal.interface import JournalFailed
    from rallypoint.server.serve import serving

    log = get_logger()
    async with serving(settings) as running:
        print(f"listening on {settings.host}:{running.port}", flush=True)
        log.info("coordinator_started", host=settings.host, port=running.port, state=place)
        gc.freeze()  # imported modules stay, so the collector can skip them
        gc.set_threshold(GARBAGE_MIN, *gc.get_threshold()[1:])
        stopped = asyncio.get_running_loop().create_task(stop.wait())
        await asyncio.wait((stopped, running.failed), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not running.failed.done():
            log.info("shutdown_requested")
            return 0
        failure = running.failed.exception()
        if isinstance(failure, JournalFailed):
            raise failure
        log.error("coordinator_failed", error=repr(failure))
        return 1
