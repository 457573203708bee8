"""What the commands that serve have in common: coordinator and relay."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from rallypoint.base.addresses import is_loopback
from rallypoint.base.values import text
from rallypoint.cli.flags.flag import Flag, Values
from rallypoint.cli.flags.parser import fail, show_error

TOKEN_VARIABLE = "RALLYPOINT_TOKEN"
LISTENING_PAIRS = (
    ("tls_cert", "tls_key"),
    ("tls_key", "tls_cert"),
    ("tls_client_ca", "tls_cert"),
)
"""Flags of a listener, each with the one that it needs."""


def file_flag(name: str, help: str, without: str = "") -> Flag:
    """Return the flag of a file; `without`: what is true without it."""
    return Flag(
        names=(name,), parse=text, metavar="FILE", default="", default_text=without, help=help
    )


def require_pairs(args: Values, pairs: Iterable[tuple[str, str]]) -> None:
    """End with a line when the first flag of a pair is given without the second."""
    for one, other in pairs:
        if getattr(args, one) and not getattr(args, other):
            fail(args.prog, f"--{one.replace('_', '-')} needs --{other.replace('_', '-')}")


def run(args: Values, serve: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    """Serve until a signal asks to stop; return the exit code.

    Args:
        args: the flags, those of logs among them.
        serve: serves until its event is set.
    """
    from rallypoint.base.console import STALLED_S, Console, open_text
    from rallypoint.base.needs import HOSTED_TASKS, find_task_limit
    from rallypoint.cli.logs import configure_logs, take_python_logs

    if why := find_task_limit("it", HOSTED_TASKS - 1):
        fail(args.prog, why)
    console = Console(sys.stderr.fileno())
    console.is_json = args.log_format == "json"
    configure_logs(args.log_level, args.log_format, open_text(console))
    take_python_logs()
    # Before gRPC is imported: its C core would write its own lines, also one for each handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # The members of etcd: its own resolver would wait for name servers that have nothing to say.
    os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
    try:
        return asyncio.run(_run(serve))
    finally:
        with suppress(KeyboardInterrupt):
            console.flush(STALLED_S)


async def _run(serve: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    from rallypoint.base.open_files import raise_file_limit

    stop = asyncio.Event()
    raise_file_limit()  # each agent and worker is a connection
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    return await serve(stop)


def show_taken(args: Values, error: object) -> None:
    """Print that a command cannot listen."""
    show_error(args.prog, f"{error}: the port is in use, or the address is not this host's")


def warn_of_gaps(host: str, *, authenticates: bool, tls: bool, auth_flag: str) -> None:
    """Log what is open to others when a server listens beyond its own host.

    Args:
        host: that it listens on.
        authenticates: callers are asked who they are.
        tls: connections are encrypted.
        auth_flag: the flag with which callers are asked.
    """
    from rallypoint.base.log import get_logger

    if is_loopback(host):
        return
    log = get_logger()
    if not authenticates:
        log.warning(
            "unprotected",
            why="anyone who reaches this port controls the jobs and their nodes",
            hint=f"set {auth_flag} and --tls-cert, or listen on 127.0.0.1: docs/security.md",
        )
    elif not tls:
        log.warning(
            "unencrypted",
            why="tokens can be read by anyone on the network",
            hint="set --tls-cert and --tls-key: docs/security.md",
        )
