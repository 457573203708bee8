"""Which coordinator a command asks, and how it proves who it is.

An option wins over a variable, and both over the current context. A context brings its own TLS and
token: the variables about those count only where no context is used, so that no token reaches a
coordinator that it was not meant for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.base.addresses import COORDINATOR_PORT
from rallypoint.cli.operator import contexts
from rallypoint.cli.operator.common import Common
from rallypoint.cli.operator.contexts import Context, read_address, read_contexts

if TYPE_CHECKING:
    from rallypoint.wire.access import Access

VARIABLE = "RALLYPOINT_COORDINATOR"
DEFAULT = f"localhost:{COORDINATOR_PORT}"


class Target(Struct, frozen=True):
    """A coordinator, or several that share a store."""

    endpoints: str
    """`host:port`, with commas in between."""
    source: str
    """Where that comes from, for messages: an option, a variable, a context; empty: the default."""
    context: Context | None = None
    """The context that it comes from."""


def choose_target(common: Common, environment: Mapping[str, str]) -> Target:
    """Return the coordinator to ask.

    Raises:
        CommandFailed: an address is none, there is no such context, or its file is damaged.
    """
    if common.coordinator:
        return Target(_read(common.coordinator, "--coordinator"), "--coordinator")
    if not common.context and environment.get(VARIABLE):
        return Target(_read(environment[VARIABLE], VARIABLE), VARIABLE)
    saved = read_contexts(contexts.contexts_path(environment))
    name = common.context or environment.get(contexts.VARIABLE, "") or saved.current
    if not name:
        return Target(DEFAULT, "")
    found = saved.find(name)
    source = f"context {name}"
    return Target(read_address(found.coordinator, source), source, found)


def _read(text: str, source: str) -> str:
    """Return the addresses that an option or a variable names; see `read_address`."""
    from rallypoint.wire.local_token import resolve_local

    return resolve_local(read_address(text, source))


def choose_access(common: Common, target: Target, environment: Mapping[str, str]) -> Access:
    """Return how to prove who one is.

    Raises:
        AccessFailed: a variable is wrong.
    """
    from rallypoint.wire.access import PLAIN, Access, from_environment
    from rallypoint.wire.job_secret import with_job_secret
    from rallypoint.wire.local_token import with_local_token

    base = PLAIN
    if target.context is None:
        # In a Slurm job, a coordinator that an agent hosts admits those of the job.
        base = with_job_secret(from_environment(environment), environment)
    else:
        saved = target.context
        base = Access(
            is_tls=saved.tls,
            ca_file=saved.tls_ca,
            cert_file=saved.tls_cert,
            key_file=saved.tls_key,
            server_name=saved.tls_server_name,
            token_file=saved.token_file,
        )
    if not common.token_file:
        base = with_local_token(base, target.endpoints)
    return Access(
        is_tls=common.tls or base.is_tls,
        ca_file=common.tls_ca or base.ca_file,
        cert_file=common.tls_cert or base.cert_file,
        key_file=common.tls_key or base.key_file,
        server_name=common.tls_server_name or base.server_name,
        token_file=common.token_file or base.token_file,
        token=base.token,
    )


def to_context(common: Common, old: Context | None) -> Context:
    """Return the context that the options describe; what they leave out stays as it was.

    Raises:
        CommandFailed: the address is none.
    """
    old = old or Context(coordinator=DEFAULT)
    address = common.coordinator
    return Context(
        coordinator=read_address(address, "--coordinator") if address else old.coordinator,
        tls=common.tls or old.tls,
        tls_ca=_absolute(common.tls_ca) or old.tls_ca,
        tls_cert=_absolute(common.tls_cert) or old.tls_cert,
        tls_key=_absolute(common.tls_key) or old.tls_key,
        token_file=_absolute(common.token_file) or old.token_file,
        tls_server_name=common.tls_server_name or old.tls_server_name,
    )


def _absolute(path: str) -> str:
    """Return a path that means the same in every folder; empty stays empty."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""
