"""`rallypoint completion`: prints the script of a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.completion.scripts import SCRIPTS
from rallypoint.cli.operator.failures import CommandFailed


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(completion)


def completion(
    shell: Annotated[
        str, typer.Argument(metavar="bash|zsh|fish", help="which shell", show_default=False)
    ],
) -> None:
    """Print a script with which a shell completes commands, options, and names of jobs and nodes.

    Into ~/.bashrc: source <(rallypoint completion bash)

    Into ~/.zshrc, after compinit: source <(rallypoint completion zsh)

    For fish: rallypoint completion fish > ~/.config/fish/completions/rallypoint.fish
    """
    if shell not in SCRIPTS:
        raise CommandFailed(f"{shell!r} is none of {', '.join(SCRIPTS)}", EXIT_USAGE)
    print(SCRIPTS[shell], end="")
