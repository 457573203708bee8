"""The flags that protect a coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rallypoint.cli.commands.serving import (
    LISTENING_PAIRS,
    TOKEN_VARIABLE,
    file_flag,
    require_pairs,
)
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail

if TYPE_CHECKING:
    from rallypoint.server.access.protecting import ProtectionSettings


PROTECTION = Group(
    "Protection",
    (
        file_flag(
            "--tls-cert",
            "certificate of this coordinator, and the chain after it: PEM",
            "connections are not encrypted",
        ),
        file_flag("--tls-key", "its private key: PEM, without a passphrase"),
        file_flag(
            "--tls-client-ca",
            "authorities of clients, which then must show a certificate; without --auth and "
            f"{TOKEN_VARIABLE} each of them has every role",
            "clients need no certificate",
        ),
        file_flag(
            "--tls-ca",
            "authorities of the other coordinators of the store",
            "--tls-client-ca, or else the system's",
        ),
        file_flag(
            "--auth",
            "who may call: tokens and names of certificates, each with its role",
            "no caller has to prove anything",
        ),
        Flag(
            names=("--require-auth",),
            help="do not start unless callers have to prove who they are",
        ),
    ),
    note=f"The variable {TOKEN_VARIABLE} is one more token, with every role. Files that are "
    "replaced are read again within a second.",
)


def read_protection(args: Values, environment: Mapping[str, str]) -> ProtectionSettings:
    """Return what protects the coordinator, or end with a line about what is wrong."""
    from rallypoint.server.access.protecting import ProtectionSettings
    from rallypoint.server.etcd.address import is_etcd

    require_pairs(args, (*LISTENING_PAIRS, ("tls_ca", "tls_cert")))
    if args.tls_ca and not is_etcd(args.state):
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
