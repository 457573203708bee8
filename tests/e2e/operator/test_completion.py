"""The scripts of `rallypoint completion` in real shells, beside a real job."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable

import pytest

from support.processes.commands import RALLYPOINT, SCRIPTS
from support.processes.world import World

pytestmark = pytest.mark.long  # each Tab is a process or two
_BASH = """
source <({rallypoint} completion bash)
COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}
_rallypoint rallypoint
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# zsh completes only in a terminal, so what it would be given is printed instead.
_ZSH = """
compdef() {{ : }}
compadd() {{ print -l -- $values }}
_files() {{ print FILES }}
source <({rallypoint} completion zsh)
words=({line}); CURRENT=$#words; PREFIX={last!r}
[[ -z $PREFIX ]] && words+=('') && CURRENT=$#words
_rallypoint
"""
_FISH = """
{rallypoint} completion fish | source
complete -C {line!r}
"""


def ask_bash(line: str) -> str:
    return _BASH.format(rallypoint=RALLYPOINT, line=line)


def ask_zsh(line: str) -> str:
    return _ZSH.format(rallypoint=RALLYPOINT, line=line, last=line.rpartition(" ")[2])


def ask_fish(line: str) -> str:
    return _FISH.format(rallypoint=RALLYPOINT, line=line)


SHELLS = {
    "bash": (("bash", "--norc", "-c"), ask_bash),
    "zsh": (("zsh", "-f", "-c"), ask_zsh),
    "fish": (("fish", "--no-config", "-c"), ask_fish),
}


@pytest.fixture(params=SHELLS)
def tab(request: pytest.FixtureRequest, world: World) -> Callable[[str], list[str]]:
    """Return a function that presses Tab after a line, and returns the candidates."""
    start, ask = SHELLS[request.param]
    if shutil.which(start[0]) is None:
        pytest.skip(f"{start[0]} is not installed")

    def press(line: str) -> list[str]:
        path = f"{SCRIPTS}:/usr/bin:/bin"
        env = {"PATH": path, "RALLYPOINT_COORDINATOR": world.target}
        done: subprocess.CompletedProcess[str] = world.run(*start, ask(line), env=env)
        assert done.stderr == ""
        return sorted(found.partition("\t")[0] for found in done.stdout.splitlines() if found)

    return press


def test_a_tab_completes(world: World, tab: Callable[[str], list[str]]) -> None:
    """Commands, options, and the names of jobs and nodes."""
    world.agent("node-a", "--join-timeout=60")
    world.mailbox.workers(1)
    job = world.job_id

    assert tab("rallypoint can") == ["cancel"]
    assert tab("rallypoint cancel --rea") == ["--reason"]
    assert tab(f"rallypoint cancel {job[:-2]}") == [job]
    assert tab(f"rallypoint drain {job} nod") == ["node-a"]
    assert tab(f"rallypoint drain {job} ") == ["node-a"]


def test_a_coordinator_that_is_away_costs_a_moment(tab: Callable[[str], list[str]]) -> None:
    """There are no names then, and no message, within moments."""
    began_s = time.monotonic()

    assert tab("rallypoint -c 127.0.0.1:1 status x") == []
    assert time.monotonic() - began_s < 10  # a busy machine; it takes a third of a second
