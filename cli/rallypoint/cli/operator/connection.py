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
from msgspec.structs import replace

from rallypoint.base import worker_variables
from rallypoint.base.addresses import COORDINATOR_PORT
from rallypoint.cli.operator import contexts
from rallypoint.cli.operator.common import AccessOptions, Common
from rallypoint.cli.operator.contexts import Context, read_address, read_contexts

if TYPE_CHECKING:
    from rallypoint.wire.access import Access

VARIABLE = worker_variables.COORDINATOR
PATHS = ("tls_ca", "tls_cert", "tls_key", "token_file")
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
        CommandFailed: an address is invalid, there is no such context, or its file is damaged.
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
    from rallypoint.wire.access import PLAIN, from_environment
    from rallypoint.wire.job_secret import with_job_secret
    from rallypoint.wire.local_token import with_local_token

    if target.context is None:
        # In a Slurm job, a coordinator that an agent hosts admits those of the job.
        base = with_job_secret(from_environment(environment), environment)
    else:
        base = target.context.over(PLAIN)
    if not common.token_file:
        base = with_local_token(base, target.endpoints)
    return common.over(base)


def to_context(common: Common, old: Context | None) -> Context:
    """Return the context that the options describe; what they leave out stays as it was.

    Raises:
        CommandFailed: the address is none.
    """
    old = old or Context(coordinator=DEFAULT)
    given = {
        name: _absolute(value) if name in PATHS else value
        for name in AccessOptions.__struct_fields__
        if (value := getattr(common, name))
    }
    if common.coordinator:
        given["coordinator"] = read_address(common.coordinator, "--coordinator")
    return replace(old, **given)


def _absolute(path: str) -> str:
    """Return a path that means the same in every folder."""
    return os.path.abspath(os.path.expanduser(path))
