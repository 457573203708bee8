"""The options that every command of an operator has, and how a function becomes such a command.

They may stand before the command, too: `rallypoint -c head:50051 jobs`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.common import TIMEOUT_S, TIMEOUT_S_MAX, TIMEOUT_S_MIN, Common, Format
from rallypoint.cli.operator.failures import CommandFailed, exit_code_of
from rallypoint.cli.operator.hints import reaching_as
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.client.errors import RallypointError

PANEL = "Options of every command"


_FLAGS: dict[str, bool] = {}
"""Each name of these options, and whether it takes a value."""


def _option(
    name: str, metavar: str | None, help: str, default: Any = "", short: str = ""
) -> inspect.Parameter:
    """Return an option as a parameter: Typer reads options from a signature."""
    names = [f"--{name.replace('_', '-')}", *([short] if short else [])]
    _FLAGS.update((one, metavar is not None) for one in names)
    option = typer.Option(*names, help=help, metavar=metavar, rich_help_panel=PANEL)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[type(default), option],
    )


def _and_variable(name: str, metavar: str | None, help: str, **more: Any) -> inspect.Parameter:
    """Return an option that a variable of the same name sets, too."""
    return _option(name, metavar, f"{help} [variable: RALLYPOINT_{name.upper()}]", **more)


_PARAMETERS = (
    _and_variable(
        "coordinator",
        "HOST[:PORT],...",
        "coordinator to ask, or several that share a store",
        short="-c",
    ),
    _and_variable("context", "NAME", "saved context to use instead of the current one"),
    _option("output", "table|json", "for people, or for programs", Format.TABLE, "-o"),
    _option("timeout", "SECONDS", "how long a call may take", TIMEOUT_S),
    _and_variable("tls", None, "connect with TLS", default=False),
    _and_variable(
        "tls_ca", "FILE", "authorities that the coordinator's certificate must come from"
    ),
    _and_variable("tls_cert", "FILE", "own certificate to show"),
    _and_variable("tls_key", "FILE", "its key"),
    _and_variable(
        "tls_server_name",
        "NAME",
        "name to expect in the coordinator's certificate instead of its host",
    ),
    _and_variable("token_file", "FILE", "file with the token to show"),
)
COMMON_NAMES = frozenset(one.name for one in _PARAMETERS)
"""Names of the parameters of every command."""


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Return a function for Typer: that function, with the options of every command.

    Args:
        function: takes an `Invocation` first, and then its own options by name. It returns an exit
            code; None: 0.
    """
    own = tuple(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def run(**values: Any) -> None:
        given = {one.name: values.pop(one.name) for one in _PARAMETERS}
        _check_timeout(given["timeout"])
        common = Common(timeout_s=given.pop("timeout"), **given)
        invocation = Invocation(common)
        with reaching_as(common):
            try:
                code = function(invocation, **values)
            except RallypointError as error:
                text = invocation.explain(error, values.get("job", ""))
                raise CommandFailed(text, exit_code_of(error)) from error
            finally:
                invocation.close()
        if code:
            raise typer.Exit(code)

    own = tuple(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)
    parameters = (*own, *_PARAMETERS)
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for Typer
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _check_timeout(timeout_s: float) -> None:
    """Refuse a limit that is none. Typer would print its range in each help.

    Raises:
        CommandFailed: it is too short or too long.
    """
    if not TIMEOUT_S_MIN <= timeout_s <= TIMEOUT_S_MAX:
        text = f"--timeout: {timeout_s:g} is not within {TIMEOUT_S_MIN:g} and {TIMEOUT_S_MAX:.0f}"
        raise CommandFailed(f"{text} seconds", EXIT_USAGE)


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of every command with which a command line begins, and what follows."""
    words, moved = list(argv), list[str]()
    while words and (takes_value := _FLAGS.get(words[0].partition("=")[0])) is not None:
        size = 2 if takes_value and "=" not in words[0] else 1
        moved += words[:size]
        words = words[size:]
    return moved, words
