"""How the agent proves who it is, and how it verifies the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rallypoint.base.values import text
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail

if TYPE_CHECKING:
    from rallypoint.wire.access import Access


def _file(name: str, help: str) -> Flag:
    return Flag(names=(name,), parse=text, metavar="FILE", default="", help=help)


GROUPS = (
    Group(
        "Access",
        (
            Flag(
                names=("--tls",),
                help="encrypt, and verify the coordinator; the flags below imply it",
            ),
            _file("--tls-ca", "authorities that may have signed the coordinator's certificate"),
            _file("--tls-cert", "certificate of this node, for a coordinator that wants one"),
            _file("--tls-key", "private key of that certificate"),
            Flag(
                names=("--tls-server-name",),
                parse=text,
                metavar="NAME",
                default="",
                default_text="the coordinator's host",
                help="name that the coordinator's certificate must have",
            ),
            _file("--token-file", "token of this node; RALLYPOINT_TOKEN may have it instead"),
        ),
        "Files that are replaced are read again. A built-in coordinator needs none of this.",
    ),
)


def check(args: Values) -> None:
    """Reject a certificate without its key."""
    if bool(args.tls_cert) != bool(args.tls_key):
        given, missing = ("cert", "key") if args.tls_cert else ("key", "cert")
        fail(args.prog, f"{args.source(f'tls_{given}')} needs --tls-{missing}")


def read_access(args: Values, environment: Mapping[str, str]) -> Access:
    """Return what the flags and variables say; this loads the wire."""
    from rallypoint.wire.access import TOKEN_VARIABLE, Access

    token = environment.get(TOKEN_VARIABLE, "").strip()
    if "tls" in args.given and not args.tls:  # switched off by a variable
        return Access(token_file=args.token_file, token=token)
    return Access(
        is_tls=args.tls,
        ca_file=args.tls_ca,
        cert_file=args.tls_cert,
        key_file=args.tls_key,
        server_name=args.tls_server_name,
        token_file=args.token_file,
        token=token,
    )
