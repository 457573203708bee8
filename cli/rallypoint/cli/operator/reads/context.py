"""`rallypoint context`: the coordinators that a user has saved under names."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator import contexts
from rallypoint.cli.operator.connection import to_context
from rallypoint.cli.operator.contexts import Contexts
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, argument
from rallypoint.wire.access import PLAIN

COLUMNS = ("CURRENT", "NAME", "COORDINATOR", "TLS", "TOKEN FILE")
Name = Annotated[str, argument("NAME", help="name of the context")]


def _read() -> Contexts:
    return contexts.read_contexts(contexts.contexts_path(os.environ))


def _write(saved: Contexts) -> None:
    contexts.write_contexts(contexts.contexts_path(os.environ), saved)


@Command
def list_(invocation: Invocation) -> None:
    """List the contexts."""
    saved = _read()
    if invocation.output.is_json:
        every = [_to_json(saved, name) for name in sorted(saved.contexts)]
        invocation.output.print_json(every)
        return
    if not saved.contexts:
        invocation.output.note("no contexts yet; save one: rallypoint context set NAME -c HOST")
        return
    rows = [
        (
            "*" if name == saved.current else " ",
            name,
            one.coordinator,
            "yes" if one.over(PLAIN).uses_tls else "no",
            one.token_file,
        )
        for name, one in sorted(saved.contexts.items())
    ]
    invocation.output.print_table(COLUMNS, rows, flexible="TOKEN FILE")


@Command
def use(invocation: Invocation, name: Name) -> None:
    """Make a context the current one.

    Commands ask its coordinator from now on, unless an option or a variable names another one.
    """
    saved = _read()
    found = saved.find(name)
    _write(msgspec.structs.replace(saved, current=name))
    invocation.output.note(f"context {name} is the current one: {found.coordinator}")


@Command
def set_(invocation: Invocation, name: Name) -> None:
    """Save a coordinator under a name.

    Such as: rallypoint context set prod -c head:50051 --tls-ca ca.pem. Options that are not given
    stay as they were. The first context becomes the current one. Tokens are not
    saved, only the path of a file with one.
    """
    contexts.check_name(name)
    saved = _read()
    old = saved.contexts.get(name)
    if old is None and not invocation.common.coordinator:
        raise CommandFailed("a new context needs a coordinator: add -c HOST[:PORT]", EXIT_USAGE)
    if old is None and len(saved.contexts) >= contexts.CONTEXTS_MAX:
        raise CommandFailed(f"there are {contexts.CONTEXTS_MAX} contexts; delete one")
    new = to_context(invocation.common, old)
    _write(Contexts(saved.current or name, {**saved.contexts, name: new}))
    invocation.output.note(f"context {name} saved: {new.coordinator}")


@Command
def show(
    invocation: Invocation,
    name: Annotated[
        str, argument("NAME", help="name of the context; without it: the current one")
    ] = "",
) -> None:
    """Show a context."""
    saved = _read()
    name = name or invocation.common.context or saved.current
    if not name:
        raise CommandFailed("no context is the current one; choose one: rallypoint context use")
    saved.find(name)
    found = _to_json(saved, name)
    if invocation.output.is_json:
        invocation.output.print_json(found)
        return
    for key, value in found.items():
        invocation.output.print(f"{key:16}{value}")


@Command
def delete(invocation: Invocation, name: Name) -> None:
    """Delete a context."""
    saved = _read()
    saved.find(name)
    left = {other: one for other, one in saved.contexts.items() if other != name}
    current = "" if saved.current == name else saved.current
    _write(Contexts(current, left))
    after = "" if current or not left else "; choose another: rallypoint context use NAME"
    invocation.output.note(f"context {name} deleted{after}")


def _to_json(saved: Contexts, name: str) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(saved.contexts[name])
    shown = {"name": name, "current": name == saved.current}
    return {**shown, "coordinator": values.pop("coordinator"), **values}


GROUPS = {"context": {"list": list_, "use": use, "set": set_, "show": show, "delete": delete}}
"""The commands of each group."""
