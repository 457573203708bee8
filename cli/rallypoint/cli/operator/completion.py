"""`rallypoint completion`: prints the script with which a shell asks `candidates`."""

from __future__ import annotations

from typing import Annotated

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.cli.operator.options import Command, argument

_BASH = """\
# Completion of rallypoint for bash. Into ~/.bashrc: source <(rallypoint completion bash)
_rallypoint() {
    local kind value
    COMPREPLY=()
    {
        IFS= read -r kind || return 0
        while IFS= read -r value; do
            COMPREPLY+=("$value")
        done
    } < <(rallypoint __complete bash "$COMP_WORDBREAKS" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ $kind == files ]]; then
        compopt -o default 2>/dev/null
    fi
    return 0
}
complete -F _rallypoint rallypoint
"""
_ZSH = """\
#compdef rallypoint
# Completion of rallypoint for zsh.
# Into ~/.zshrc, after compinit: source <(rallypoint completion zsh)
_rallypoint() {
    local kind value text
    local -a values shown
    {
        IFS= read -r kind
        while IFS=$'\\t' read -r value text; do
            values+=("$value")
            shown+=("$value${text:+  -- $text}")
        done
    } < <(rallypoint __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
    if [[ $kind == files ]]; then
        _files
    elif (( $#values )); then
        compadd -l -d shown -a values
    fi
}
if [[ ${funcstack[1]} == _rallypoint ]]; then
    _rallypoint "$@"
else
    compdef _rallypoint rallypoint
fi
"""
_FISH = """\
# Completion of rallypoint for fish. Into ~/.config/fish/completions/rallypoint.fish
function __rallypoint_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l last (commandline -ct)
    set -l found (rallypoint __complete fish $words "$last" 2>/dev/null)
    if test "$found[1]" = files
        __fish_complete_path "$last"
    else if test (count $found) -gt 1
        printf '%s\\n' $found[2..-1]
    end
end
complete -c rallypoint -f -a '(__rallypoint_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""By the name of the shell."""


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
        raise CommandFailed(f"{shell!r} is not one of {', '.join(SCRIPTS)}", EXIT_USAGE)
    print(SCRIPTS[shell], end="")
