"""The flags that protect a coordinator, and what it says when none is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rallypoint.base.addresses import is_loopback
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail

if TYPE_CHECKING:
    from rallypoint.server.hosting.protecting import ProtectionSettings

TOKEN_VARIABLE = "RALLYPOINT_TOKEN"


def _file(name: str, help: str, without: str = "") -> Flag:
    """Return the flag of a file; `without`: what is true without it."""
    return Flag(
        names=(name,), parse=str, metavar="FILE", default="", default_text=without, help=help
    )


PROTECTION = Group(
    "Protection",
    (
        _file(
            "--tls-cert",
            "certificate of this coordinator, and the chain after it: PEM",
            "connections are not encrypted",
        ),
        _file("--tls-key", "its private key: PEM, without a passphrase"),
        _file(
            "--tls-client-ca",
            "authorities of clients, which then must show a certificate; without --auth and "
            f"{TOKEN_VARIABLE} each of them has every role",
            "clients need no certificate",
        ),
        _file(
            "--tls-ca",
            "authorities of the other coordinators of the store",
            "--tls-client-ca, or else the system's",
        ),
        _file(
            "--auth",
            "who may call: tokens and names of certificates, each with its role",
            "no one is asked",
        ),
        Flag(
            names=("--require-auth",),
            help="do not start unless callers have to say who they are",
        ),
    ),
    note=f"The variable {TOKEN_VARIABLE} is one more token, with every role. All files are looked "
    "at once a second.",
)


def read_protection(args: Values, environment: Mapping[str, str]) -> ProtectionSettings:
    """Return what protects the coordinator, or end with a line about what is wrong."""
    from rallypoint.server.hosting.protecting import ProtectionSettings

    for one, other in (
        ("tls_cert", "tls_key"),
        ("tls_key", "tls_cert"),
        ("tls_client_ca", "tls_cert"),
        ("tls_ca", "tls_cert"),
    ):
        if getattr(args, one) and not getattr(args, other):
            fail(args.prog, f"--{_flag(one)} needs --{_flag(other)}")
    if args.tls_ca and not args.state.startswith("etcd:"):
        fail(args.prog, "--tls-ca is only for --state etcd://…")
    settings = ProtectionSettings(
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_client_ca=args.tls_client_ca,
        tls_ca=args.tls_ca,
        auth_file=args.auth,
        token=environment.get(TOKEN_VARIABLE, "").strip(),
    )
    if args.require_auth and not settings.facts.authenticates:
        fail(
            args.prog,
            "--require-auth: anyone could call this coordinator; "
            f"set --auth, --tls-client-ca or {TOKEN_VARIABLE}",
        )
    return settings


def warn_of_gaps(host: str, settings: ProtectionSettings) -> None:
    """Log what is open to others when the coordinator listens beyond its own host."""
    from rallypoint.base.log import get_logger

    if is_loopback(host):
        return
    log, facts = get_logger(), settings.facts
    if not facts.authenticates:
        log.warning(
            "unprotected",
            why="anyone who reaches this port controls the jobs and their nodes",
            hint="set --auth and --tls-cert, or listen on 127.0.0.1: docs/security.md",
        )
    elif not facts.tls:
        log.warning(
            "unencrypted",
            why="tokens can be read by anyone on the network",
            hint="set --tls-cert and --tls-key: docs/security.md",
        )


def _flag(dest: str) -> str:
    return dest.replace("_", "-")
