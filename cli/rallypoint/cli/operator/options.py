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


def _option(*names: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    _FLAGS.update((name, metavar is not None) for name in names)
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=PANEL, **more)


def _signature(
    coordinator: Annotated[
        str,
        _option(
            "--coordinator",
            "-c",
            metavar="HOST[:PORT],...",
            help="coordinator to ask, or several that share a store "
            "[variable: RALLYPOINT_COORDINATOR]",
        ),
    ] = "",
    context: Annotated[
        str,
        _option(
            "--context",
            metavar="NAME",
            help="saved context to use instead of the current one [variable: RALLYPOINT_CONTEXT]",
        ),
    ] = "",
    output: Annotated[
        Format,
        _option("--output", "-o", metavar="table|json", help="for people, or for programs"),
    ] = Format.TABLE,
    timeout: Annotated[
        float,
        _option(
            "--timeout",
            metavar="SECONDS",
            help="how long a call may take",
        ),
    ] = TIMEOUT_S,
    tls: Annotated[
        bool, _option("--tls", help="connect with TLS [variable: RALLYPOINT_TLS]")
    ] = False,
    tls_ca: Annotated[
        str,
        _option(
            "--tls-ca",
            metavar="FILE",
            help="authorities that the coordinator's certificate must come from "
            "[variable: RALLYPOINT_TLS_CA]",
        ),
    ] = "",
    tls_cert: Annotated[
        str,
        _option(
            "--tls-cert",
            metavar="FILE",
            help="own certificate to show [variable: RALLYPOINT_TLS_CERT]",
        ),
    ] = "",
    tls_key: Annotated[
        str, _option("--tls-key", metavar="FILE", help="its key [variable: RALLYPOINT_TLS_KEY]")
    ] = "",
    tls_server_name: Annotated[
        str,
        _option(
            "--tls-server-name",
            metavar="NAME",
            help="name to expect in the coordinator's certificate instead of its host "
            "[variable: RALLYPOINT_TLS_SERVER_NAME]",
        ),
    ] = "",
    token_file: Annotated[
        str,
        _option(
            "--token-file",
            metavar="FILE",
            help="file with the token to show [variable: RALLYPOINT_TOKEN_FILE]",
        ),
    ] = "",
) -> None:
    """Carry the options as parameters: Typer reads them from a signature."""


_PARAMETERS = tuple(inspect.signature(_signature, eval_str=True).parameters.values())
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

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *_PARAMETERS)]
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
