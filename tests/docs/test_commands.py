"""Every command in the README and in docs/ that can run here runs as it is printed.

It is pasted with its line breaks. Only a few words are replaced: the ports 50051 and 29400 by free
ones, and the address of the repository by the checkout. CONTRIBUTING.md says how a page marks what
runs elsewhere, later, or not at all.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rallypoint.cli.commands.agent.command import build_parser as build_agent_parser
from rallypoint.cli.commands.coordinator import build_parser as build_coordinator_parser
from support.docs.pages import (
    AT_REST,
    NEEDS,
    PAGES,
    REPOSITORY,
    WORDS,
    Block,
    Session,
    find_blocks,
    find_sessions,
    find_unrun,
)
from support.docs.shell import LIMIT_S, Shell
from support.processes.commands import SCRIPTS, kill
from support.processes.world import World

URL = "https://github.com/rallypoint-dev/rallypoint"
PORTS = ("50051", "29400")
"""Of coordinators, as the pages print them."""
LONG_LIMIT_S = 400
PARSERS = {"agent": build_agent_parser(), "coordinator": build_coordinator_parser()}
COMMAND = re.compile(r"\brallypoint (agent|coordinator) ([^#&|>\n]*)")
"""One of ours anywhere in a script, and its arguments."""
WHOLE_FILES = ("bash", "ini")
"""Languages of batch scripts and units, which need another machine."""


def session_parameters() -> list[object]:
    """Return a parameter for every session, the long ones marked."""
    return [
        pytest.param(session, id=session.blocks[0].name, marks=find_marks(session))
        for session in find_sessions()
    ]


def find_marks(session: Session) -> list[pytest.MarkDecorator]:
    """Return when a session runs, and its limit if that is not the usual one."""
    marks = {"long": pytest.mark.long, "nightly": pytest.mark.nightly}
    found = [mark for word, mark in marks.items() if word in session.options]
    return [*found, pytest.mark.timeout(LONG_LIMIT_S)] if found else []


def prepare_folder(session: Session, folder: Path) -> Path:
    """Return the folder in which a session runs, with what it needs."""
    if "in the repository" in session.options:
        return REPOSITORY
    if "in a clone" in session.options:
        folder /= "clone"
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, folder], check=True)
    elif "fresh environment" not in session.options:
        (folder / "examples").symlink_to(REPOSITORY / "examples")
    for name, text in session.files:
        (folder / name).write_text(text)
    return folder


UNEXPECTED = (
    *("RALLYPOINT_LOG_FORMAT", "COLUMNS", "LINES"),
    *("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "ARGS"),
)
"""Variables of these tests, and of the make that runs them, which a reader does not have."""


def prepare_env(session: Session, world: World) -> dict[str, str]:
    """Return the environment of a session: ours, or one with nothing in it."""
    scripts = SCRIPTS
    if "fresh environment" in session.options:
        scripts = world.folder / "venv" / "bin"
        subprocess.run([sys.executable, "-m", "venv", scripts.parent], check=True)
    env = {**world.env(), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for name in UNEXPECTED:
        env.pop(name, None)
    return env


def fit(command: str, ports: Mapping[str, int]) -> str:
    """Return a command with free ports, with this checkout as the repository, and with a number of
    epochs by which pkill finds no worker of other tests."""
    command = command.replace(URL, f"{REPOSITORY} rallypoint")
    command = command.replace("epochs 25", f"epochs {25 + os.getpid() % 30}")
    for printed, free in ports.items():
        command = command.replace(printed, str(free))
    return command


@pytest.mark.parametrize("session", session_parameters())
def test_commands_run_as_printed(session: Session, tmp_path: Path) -> None:
    """Each command succeeds, and prints lines of the shape that the page shows."""
    if session.missing:
        pytest.skip(f"{', '.join(session.missing)} not installed: make test-frameworks")
    with World(tmp_path, "localhost:1") as world:
        env = prepare_env(session, world)
        ports = {printed: world.ports.reserve() for printed in PORTS}
        shell = Shell(env, prepare_folder(session, tmp_path))
        limit_s = LONG_LIMIT_S if find_marks(session) else LIMIT_S
        try:
            expected: list[str] = []
            for block in session.blocks:
                if AT_REST in block.options:
                    assert world.left([shell.pid]) == []
                for step in block.steps():
                    code = shell.run(fit(step.command, ports), limit_s)
                    assert code == 0, f"{step.command}: {code}\n{shell.text()}"
                    expected += step.output
                    shell.await_shapes(expected)
        finally:
            for pid in world.marked():
                kill(pid)  # which may have ended those after it
            shell.close()


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in find_unrun()])
def test_commands_that_are_not_run_exist(block: Block) -> None:
    """A script is there, a command knows the flags that it is given, and a make target is there."""
    # A variable is some value.
    text = re.sub(r"\$(\w+|\{[^}]*\})", "1", block.text.replace("\\\n", ""))
    for name, arguments in COMMAND.findall(text):
        PARSERS[name].read(shlex.split(arguments), {})
    if block.language in WHOLE_FILES:
        if block.language == "bash":
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        return
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    for step in block.steps():
        program, *words = shlex.split(step.command.replace("\\\n", ""))
        if program == "make":
            assert words[0] in targets
        elif program == "python":
            script, *flags = words
            known = subprocess.run(
                [sys.executable, REPOSITORY / script, "--help"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            unknown = [flag for flag in flags if flag[:2] == "--" and flag not in known]

            assert unknown == []
        else:
            others = ("grpcurl", "pip", "sbatch")
            assert program in others or shutil.which(program, path=str(SCRIPTS))


def test_every_block_says_how_it_is_checked() -> None:
    """A block with commands is a console block; what comments say is known."""
    for block in (block for path in PAGES for block in find_blocks(path)):
        words = {word for word in block.options if not word.startswith(NEEDS)}
        assert words <= set(WORDS), block.name
        assert block.language not in WHOLE_FILES or block.kind == "not run", block.name
        if block.language != "console":
            assert not re.search(r"^\$ ", block.text, re.MULTILINE), block.name
        else:
            assert block.steps(), block.name
