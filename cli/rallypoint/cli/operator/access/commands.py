"""`rallypoint certs` and `rallypoint token`. They ask no coordinator."""

from __future__ import annotations

import datetime
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from rallypoint.cli.operator.access.tokens import draw_token, to_entry, write_token
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.cli.operator.options import Command, argument, option
from rallypoint.wire.access import GRANTED_ROLE_NAMES, GRANTED_ROLES, Role

if TYPE_CHECKING:
    from rallypoint.cli.operator.access.authority import Issued

FOLDER = Path("certs")
AUTHORITY_DAYS = 3650
DAYS = 365
Folder = Annotated[Path, option("--folder", metavar="FOLDER", help="folder of the authority")]


@Command
def init(
    folder: Folder = FOLDER,
    name: Annotated[
        str, option("--name", metavar="NAME", help="name of the authority")
    ] = "rallypoint authority",
    days: Annotated[
        int, option("--days", metavar="N", help="how long it is valid")
    ] = AUTHORITY_DAYS,
) -> None:
    """Make an authority.

    That is a certificate to give to everyone, and a key to keep.
    """
    made = _authority().init_authority(folder, name, days, _now())
    _report("authority", made)
    print("Agents, clients and coordinators need the certificate. Keep the key here.")


@Command
def issue_(
    name: Annotated[str, argument("NAME", help="name of the holder, such as ops-ann")],
    folder: Folder = FOLDER,
    host: Annotated[
        list[str] | None,
        option(
            "--host",
            metavar="HOST",
            help="name or address at which a coordinator is reached; repeatable. "
            "Without it the certificate is for a client",
        ),
    ] = None,
    days: Annotated[int, option("--days", metavar="N", help="how long it is valid")] = DAYS,
    renew: Annotated[bool, option("--renew", help="replace the certificate of this name")] = False,
) -> None:
    """Sign a certificate for a coordinator (--host) or a client."""
    hosts = tuple(host or ())
    made = _authority().issue(folder, name, hosts, days, _now(), renew=renew)
    _report(f"coordinator {', '.join(hosts)}" if hosts else f"client {name}", made)
    ca = folder / "ca.pem"
    if hosts:
        print(f"rallypoint coordinator --tls-cert {made.cert} --tls-key {made.key}")
    else:
        print(f"--tls-ca {ca} --tls-cert {made.cert} --tls-key {made.key}")


@Command
def new(
    name: Annotated[
        str, option("--name", metavar="NAME", help="name of its holder, for audit lines; required")
    ],
    role: Annotated[
        Role,
        option(
            "--role",
            metavar="ROLE",
            help=f"role of its holder: {GRANTED_ROLE_NAMES}",
            among=GRANTED_ROLES,
        ),
    ] = Role.AGENT,
    job: Annotated[
        list[str] | None,
        option("--job", metavar="PATTERN", help="only these jobs, such as train-*; repeatable"),
    ] = None,
    days: Annotated[
        int,
        option("--days", metavar="N", min=0, max=36_500, help="days until it expires; 0: never"),
    ] = 0,
    file: Annotated[
        Path | None,
        option("--file", metavar="FILE", help="write the token to this file, and do not print it"),
    ] = None,
) -> None:
    """Draw a token, and print its entry for the coordinator's --auth file."""
    token = draw_token()
    ends = _now() + datetime.timedelta(days=days) if days else None
    entry = to_entry(token, name, role, job or (), ends)
    if file is not None:
        write_token(file, token)
        print(f"# the token is in {file}; this is for the coordinator's --auth file:")
    else:
        print(f"# the token, which is not shown again:\n{token}\n")
        print("# for the coordinator's --auth file:")
    print(entry)


def _authority() -> ModuleType:
    """Return the module that makes certificates.

    Raises:
        CommandFailed: a package is missing; the text says how to install it.
    """
    if find_spec("cryptography") is None:
        text = "certificates need the package cryptography: pip install cryptography"
        raise CommandFailed(text)
    from rallypoint.cli.operator.access import authority

    return authority


def _report(what: str, made: Issued) -> None:
    print(f"{what}: {made.cert}, {made.key}; valid until {made.ends:%Y-%m-%d %H:%M} UTC")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


GROUPS = {"certs": {"init": init, "issue": issue_}, "token": {"new": new}}
"""The commands of each group."""
