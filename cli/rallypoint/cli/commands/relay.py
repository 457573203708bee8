"""`rallypoint relay`: carry agents to the coordinator until stopped by a signal."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.base.values import text
from rallypoint.cli.commands.serving import (
    LISTENING_PAIRS,
    TOKEN_VARIABLE,
    file_flag,
    require_pairs,
    run,
    show_taken,
    warn_of_gaps,
)
from rallypoint.cli.flags.common import LOGS, ONE_HELP_GROUP
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import Parser, fail, show_error
from rallypoint.cli.flags.values import endpoints, port_number

if TYPE_CHECKING:
    from rallypoint.relay.serve import Settings

PORT = 50_052
GARBAGE_MIN = 20_000
"""Allocations between two runs of the garbage collector, as for a coordinator (Python: 700)."""


PLACES = Group(
    "Addresses",
    (
        Flag(
            names=("--coordinator",),
            parse=endpoints,
            metavar="HOST:PORT,…",
            default="",
            help="address of the coordinator, or of several that share a store; required",
        ),
        Flag(
            names=("--host",),
            parse=text,
            metavar="ADDR",
            default="0.0.0.0",
            default_text="0.0.0.0, all addresses",
            help="address to listen on",
        ),
        Flag(
            names=("--port",),
            parse=port_number,
            metavar="PORT",
            default=PORT,
            default_text=str(PORT),
            help="port to listen on; 0: any free one",
        ),
    ),
)
ACCESS = Group(
    "To the coordinator",
    (
        Flag(
            names=("--tls",),
            help="encrypt, and verify the coordinator; --tls-ca and --tls-server-name imply it",
        ),
        file_flag("--tls-ca", "authorities that may have signed the coordinator's certificate"),
        Flag(
            names=("--tls-server-name",),
            parse=text,
            metavar="NAME",
            default="",
            default_text="the coordinator's host",
            help="name that the coordinator's certificate must have",
        ),
        file_flag("--token-file", "token of this relay, with the role relay"),
    ),
    note=f"The variable {TOKEN_VARIABLE} may have the token instead. Agents and workers show their "
    "own tokens.",
)
PROTECTION = Group(
    "To agents",
    (
        file_flag(
            "--tls-cert",
            "certificate of this relay, and the chain after it: PEM",
            "connections are not encrypted",
        ),
        file_flag("--tls-key", "its private key: PEM, without a passphrase"),
        file_flag(
            "--tls-client-ca",
            "authorities of agents, workers and tools, which then must show a certificate; to the "
            "coordinator, those without a token all have the rights of the relay's certificate",
            "clients need no certificate, and the relay shows the coordinator none",
        ),
    ),
    note="Files that are replaced are read again within a second.",
)


def build_parser(prog: str = "rallypoint relay") -> Parser:
    """Return the parser of the command."""
    return Parser(
        prog=prog,
        summary="Carry the sessions of many agents, such as those of a rack, to the coordinator on "
        "one stream.",
        groups=(PLACES, ACCESS, PROTECTION, LOGS, ONE_HELP_GROUP),
        examples=(
            ("for the agents of a rack", "--coordinator head:50051"),
            ("with coordinators that share a store", "--coordinator head1:50051,head2:50051"),
        ),
        notes=(
            "A relay keeps nothing: it may be killed and replaced at any time, and no worker "
            "notices. Give agents the addresses of two relays and of the coordinator, with commas "
            "in between.",
        ),
    )


def main(prog: str, argv: Sequence[str]) -> int:
    """Parse `argv`, serve, and return the exit code."""
    args = build_parser(prog).read(argv, os.environ)
    settings = read_settings(args, os.environ)
    return run(args, partial(_serve, args, settings))


def read_settings(args: Values, environment: Mapping[str, str]) -> Settings:
    """Return how the relay is started, or end with a line about what is wrong."""
    from rallypoint.relay.serve import Settings
    from rallypoint.wire.access import Access

    if not args.coordinator:
        fail(args.prog, "--coordinator HOST:PORT is missing: where the relay carries agents to")
    require_pairs(args, LISTENING_PAIRS)
    listening = Access(ca_file=args.tls_client_ca, cert_file=args.tls_cert, key_file=args.tls_key)
    is_tls = bool(args.tls or args.tls_ca or args.tls_server_name)
    # A caller behind the relay has the rights of the certificate that the relay shows. So it shows
    # none for callers that have not shown one themselves.
    shows = is_tls and bool(args.tls_client_ca)
    access = Access(
        is_tls=is_tls,
        ca_file=args.tls_ca,
        cert_file=args.tls_cert if shows else "",
        key_file=args.tls_key if shows else "",
        server_name=args.tls_server_name,
        token_file=args.token_file,
        token=environment.get(TOKEN_VARIABLE, "").strip(),
    )
    return Settings(args.host, args.port, args.coordinator, access, listening)


async def _serve(args: Values, settings: Settings, stop: asyncio.Event) -> int:
    from rallypoint.wire.access import AccessFailed
    from rallypoint.wire.listening import CannotListen

    try:
        return await _serve_until(stop, settings)
    except AccessFailed as error:
        show_error(args.prog, str(error))
    except CannotListen as error:
        show_taken(args, error)
    return EXIT_USAGE


async def _serve_until(stop: asyncio.Event, settings: Settings) -> int:
    """Serve until asked to stop; return the exit code."""
    from rallypoint.base.log import get_logger
    from rallypoint.relay.serve import relaying

    log = get_logger()
    async with relaying(settings) as running:
        print(f"listening on {settings.host}:{running.port}", flush=True)
        facts = {"host": settings.host, "port": running.port}
        log.info("relay_started", **facts, coordinator=settings.coordinators)
        # Without a token or certificates, its coordinator cannot ask who calls either.
        listening, access = settings.listening, settings.access
        warn_of_gaps(
            settings.host,
            authenticates=bool(access.token or access.token_file or listening.ca_file),
            tls=bool(listening.cert_file),
            auth_flag="--token-file",
        )
        gc.freeze()  # imported modules stay, so the collector can skip them
        gc.set_threshold(GARBAGE_MIN, *gc.get_threshold()[1:])
        stopped = asyncio.get_running_loop().create_task(stop.wait())
        await asyncio.wait((stopped, running.failed), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if running.failed.done():
            failure = running.failed.exception()
            log.error("relay_failed", error=repr(failure), exc_info=failure)
            return 1
        log.info("shutdown_requested", agents=len(running.sessions))
        return 0
