"""`rallypoint completion`: prints the script of a shell."""

from __future__ import annotations

from typing import Annotated

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.completion.scripts import SCRIPTS
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.cli.operator.options import Command, argument


@Command
def completion(
    shell: Annotated[str, argument("bash|zsh|fish", help="which shell")],
) -> None:
    """Print a script with which a shell completes commands, options, and names of jobs and nodes.

    Into ~/.bashrc: source <(rallypoint completion bash)

    Into ~/.zshrc, after compinit: source <(rallypoint completion zsh)

    For fish: rallypoint completion fish > ~/.config/fish/completions/rallypoint.fish
    """
    if shell not in SCRIPTS:
        raise CommandFailed(f"{shell!r} is none of {', '.join(SCRIPTS)}", EXIT_USAGE)
    print(SCRIPTS[shell], end="")
