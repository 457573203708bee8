"""`coordinator`: serve until stopped by a signal."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from rallypoint.base.addresses import is_wildcard
from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.base.values import positive_int, seconds_ms
from rallypoint.cli.commands.protection import PROTECTION, read_protection
from rallypoint.cli.commands.serving import run, show_taken, warn_of_gaps
from rallypoint.cli.flags.common import LOGS, ONE_HELP_GROUP
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import Parser, fail, show_error
from rallypoint.cli.flags.values import journal_place, own_address, port_number

if TYPE_CHECKING:
    from rallypoint.server.access.protecting import ProtectionSettings
    from rallypoint.server.journal.interface import Journal
    from rallypoint.server.journal.sqlite.journal import SqliteJournal
    from rallypoint.server.serve import Running, Sharing
    from rallypoint.server.serving.idle import UntilIdle

HOSTED_LOG = "coordinator.log"
"""The log that an agent gives the coordinator of its job, beside the journal."""
HOSTED_LINGERING = "lingering"
"""Beside the journal while the coordinator waits only for lost nodes: its process id, for agents
of this host."""
GARBAGE_MIN = 200_000
"""Allocations between two runs of the garbage collector (Python: 700). A round of a thousand nodes
allocates ten times that many objects and leaves hardly any cyclic garbage. A full run takes 0.6 s
with 4,096 nodes."""

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
            help="where to keep what must survive a restart: sqlite:PATH, a local file; "
            "etcd://HOST:2379/PREFIX; or memory: nowhere",
        ),
        Flag(
            names=("--until-idle",),
            parse=seconds_ms,
            metavar="SECONDS",
            default=None,
            default_text="never",
            help="end, and remove the journal, when all jobs are over and all nodes have left, or "
            "when no node has connected for this time",
        ),
        Flag(
            names=("--linger",),
            parse=seconds_ms,
            metavar="SECONDS",
            default=600_000,
            default_text="600",
            help="with --until-idle: how long to wait for lost nodes to learn how their job ended "
            "(or RALLYPOINT_LINGER)",
        ),
    ),
)
SHARING = Group(
    "Several coordinators, which share a store in etcd",
    (
        Flag(
            names=("--advertise",),
            parse=own_address,
            metavar="HOST[:PORT]",
            default="",
            default_text="--host, if that is one address, and the port",
            help="where agents and other coordinators reach this one",
        ),
        Flag(
            names=("--shards",),
            parse=positive_int,
            metavar="N",
            default=None,
            default_text="16, or as many as the store has",
            help="number of parts that the jobs are divided into; the first coordinator of a store "
            "fixes it, and it cannot change",
        ),
    ),
)


def build_parser(prog: str = "coordinator") -> Parser:
    """Return the parser of the command."""
    return Parser(
        prog=prog,
        summary="Serve elastic PyTorch jobs: own their membership, ranks and restarts.",
        groups=(LISTENING, PROTECTION, STATE, SHARING, LOGS, ONE_HELP_GROUP),
        examples=(
            ("listen on every address", "--port 50051"),
            ("on this machine only, any free port", "--host 127.0.0.1 --port 0"),
            ("with its journal on another disk", "--state sqlite:/data/rallypoint/journal.sqlite"),
            (
                "one of several, which share a store",
                "--advertise head1:50051 --state etcd://e1:2379,e2:2379,e3:2379/rallypoint",
            ),
        ),
        notes=(
            "Without the flags of Protection, connections are neither encrypted nor authenticated: "
            "listen on a trusted network only.",
            "After a restart the coordinator continues from its journal, and the agents report "
            "their running rounds; no worker restarts.",
        ),
    )


def main(prog: str, argv: Sequence[str]) -> int:
    """Parse `argv`, serve, and return the exit code."""
    args = build_parser(prog).read(argv, os.environ)
    return run(args, partial(_serve, args))


async def _serve(args: Values, stop: asyncio.Event) -> int:
    from rallypoint.server.journal.interface import JournalFailed, JournalInUse, StoreMismatch
    from rallypoint.server.serve import CannotListen, ProtectionInvalid

    try:
        protection = read_protection(args, os.environ)
        serving, place = prepare(args, protection)
        return await _serve_until(stop, serving, args.host, place, protection)
    except ProtectionInvalid as error:
        show_error(args.prog, str(error))
    except CannotListen as error:
        show_taken(args, error)
    except JournalFailed as error:
        show_error(args.prog, str(error))
        return EXIT_USAGE if isinstance(error, JournalInUse | StoreMismatch) else 1
    return EXIT_USAGE


def prepare(
    args: Values, protection: ProtectionSettings | None = None
) -> tuple[AbstractAsyncContextManager[Running], str]:
    """Return what serves as the flags say, and where its journal is, as `--state` takes it.

    Raises:
        JournalFailed: when the journal cannot be opened.
    """
    from rallypoint.server.access.protecting import ProtectionSettings
    from rallypoint.server.core.model.spec import Timing
    from rallypoint.server.etcd.address import is_etcd
    from rallypoint.server.journal.open import describe_journal, open_journal
    from rallypoint.server.serve import Settings, serving, sharing

    timing = Timing(window_ms=args.startup_window)
    protection = protection or ProtectionSettings()
    if is_etcd(args.state):
        if args.until_idle is not None:
            fail(args.prog, f"{args.source('until_idle')} is not for --state etcd://…")
        settings = Settings(args.host, args.port, timing, protection=protection)
        return sharing(settings, _share(args)), args.state
    for name in ("advertise", "shards"):
        if name in args.given:
            fail(args.prog, f"{args.source(name)} is only for --state etcd://…")
    journal = open_journal(args.state, args.port)
    until = None if args.until_idle is None else _until_idle(args, journal)
    settings = Settings(
        args.host, args.port, timing, journal=journal, until_idle=until, protection=protection
    )
    return serving(settings), describe_journal(journal)


def _until_idle(args: Values, journal: Journal) -> UntilIdle:
    """Return how a coordinator ends by itself, and what becomes of its journal."""
    from rallypoint.server.journal.sqlite.journal import SqliteJournal
    from rallypoint.server.serving.idle import UntilIdle, touch_file

    if not isinstance(journal, SqliteJournal):
        return UntilIdle(args.until_idle, args.linger)
    return UntilIdle(
        args.until_idle,
        args.linger,
        touch=partial(touch_file, journal.path),
        discard=partial(journal.discard, HOSTED_LOG, HOSTED_LINGERING),
        lingers=partial(_note_lingering, journal),
    )


def _note_lingering(journal: SqliteJournal, lingers: bool) -> None:
    """Tell the agents of this host that the coordinator is not needed, or is needed once more."""
    mark = journal.path.with_name(HOSTED_LINGERING)
    if lingers:
        journal.discard(HOSTED_LOG, HOSTED_LINGERING)  # also when a signal ends it
    else:
        journal.keep()
    try:
        if lingers:
            mark.write_text(str(os.getpid()))
        else:
            mark.unlink(missing_ok=True)
    except OSError as error:
        from rallypoint.base.log import get_logger

        get_logger().debug("lingering_not_marked", why=error.strerror)


def _share(args: Values) -> Sharing:
    """Return how the coordinator shares its store, or end with a line about what is wrong."""
    from rallypoint.server.core.model.shards import SHARDS_MAX
    from rallypoint.server.etcd.address import AddressInvalid, parse_address
    from rallypoint.server.serve import Sharing

    try:
        store = parse_address(args.state)
    except AddressInvalid as error:
        fail(args.prog, f"--state: {error}")
    if not args.advertise and is_wildcard(args.host):
        fail(
            args.prog,
            "--state etcd://… needs --advertise HOST:PORT: where agents and other coordinators "
            "reach this one",
        )
    if args.shards is not None and args.shards > SHARDS_MAX:
        fail(args.prog, f"{args.source('shards')}: {args.shards} is not 1 to {SHARDS_MAX}")
    return Sharing(store, args.advertise or args.host, args.shards)


async def _serve_until(
    stop: asyncio.Event,
    serving: AbstractAsyncContextManager[Running],
    host: str,
    place: str,
    protection: ProtectionSettings,
) -> int:
    """Serve until asked to stop; return the exit code.

    Args:
        stop: set when the coordinator is asked to stop.
        serving: serves while it is open.
        host: that it listens on.
        place: where its journal is, as `--state` takes it.
        protection: what protects it.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
        JournalFailed: when the journal cannot be read, or not be written any more.
    """
    from rallypoint.base.log import get_logger
    from rallypoint.server.journal.interface import JournalFailed

    log = get_logger()
    async with serving as running:
        print(f"listening on {host}:{running.port}", flush=True)
        log.info("coordinator_started", host=host, port=running.port, state=place)
        facts = protection.facts
        warn_of_gaps(host, authenticates=facts.authenticates, tls=facts.tls, auth_flag="--auth")
        gc.freeze()  # imported modules stay, so the collector can skip them
        gc.set_threshold(GARBAGE_MIN, *gc.get_threshold()[1:])
        stopped = asyncio.get_running_loop().create_task(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopped, running.failed]
        ends += [running.idle] if running.idle is not None else []
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if running.idle is not None and running.idle.done():
            log.info("coordinator_not_needed", why=running.idle.result(), then="it ends")
            return 0
        if not running.failed.done():
            log.info("shutdown_requested")
            return 0
        failure = running.failed.exception()
        if isinstance(failure, JournalFailed):
            raise failure
        log.error("coordinator_failed", error=repr(failure), exc_info=failure)
        return 1
