"""`coordinator`: serve until told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from rallypoint.cli.flags import USAGE_EXIT_CODE, Parser, add_common_flags, port_number

PROG = "coordinator"
GARBAGE_MIN = 20_000
"""Objects between two looks of the garbage collector (Python: 700). A round of a thousand nodes
makes that many objects a hundred times, and hardly any garbage that needs the collector."""


def build_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        prog=PROG,
        description="Owns rendezvous rounds, ranks and job state of elastic PyTorch jobs.",
        epilog="It keeps its state in memory: after a restart it learns running rounds from their "
        "agents again, and no worker is restarted.",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    parser.add_argument(
        "--port", type=port_number, default=50_051, help="port; 0 takes a free one (default: 50051)"
    )
    add_common_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Parse `argv`, serve, and return the exit code."""
    args = build_parser().parse_args(argv)
    from rallypoint.agent.output.console import STALLED_S, Console, open_text
    from rallypoint.cli.logs import configure_logs

    console = Console(sys.stderr.fileno())
    configure_logs(args.log_level, args.log_format, open_text(console))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write lines of its own
    try:
        return asyncio.run(_serve(args.host, args.port))
    finally:
        with suppress(KeyboardInterrupt):
            console.flush(STALLED_S)


async def _serve(host: str, port: int) -> int:
    from rallypoint.server.core.state import Timing
    from rallypoint.server.journal.interface import JournalFailed
    from rallypoint.server.serve import CannotListen, Settings, serving
    from rallypoint.wire.log import get_logger

    log = get_logger()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    try:
        async with serving(Settings(host, port, Timing())) as running:
            print(f"listening on {host}:{running.port}", flush=True)
            log.info("coordinator_started", host=host, port=running.port)
            gc.freeze()  # what was imported stays, so nobody needs to look at it again
            gc.set_threshold(GARBAGE_MIN, *gc.get_threshold()[1:])
            stopped = loop.create_task(stop.wait())
            await asyncio.wait((stopped, running.failed), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if running.failed.done():
                log.error("coordinator_failed", error=repr(running.failed.exception()))
                return 1
            log.info("coordinator_stopping")
    except CannotListen as error:
        text = f"{error}: the port is in use, or the address is not of this host"
        print(f"{PROG}: error: {text}", file=sys.stderr, flush=True)
        return USAGE_EXIT_CODE
    except JournalFailed as error:
        print(f"{PROG}: error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0
