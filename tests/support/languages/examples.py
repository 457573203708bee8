"""The examples in other languages, prepared and run as their READMEs say."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import Struct

from support.docs.pages import REPOSITORY, Step, find_blocks
from support.docs.shell import Shell
from support.languages.go_modules import has_debian, make_module_proxy
from support.processes.commands import SCRIPTS

BUILD = REPOSITORY / "build"
"""Ignored; keeps what the next run can use again."""
LIMIT_S = 300.0
"""For one command. The compiler of Go begins with its standard library."""
OF_MAKE = ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "ARGS")


class Example(Struct, frozen=True):
    """An example whose README has been followed up to the first worker."""

    label: str
    """What it calls its language."""
    folder: Path
    argv: tuple[str, ...]
    """The program."""
    env: Mapping[str, str]
    """Of a person who follows the README."""
    run: tuple[Step, ...]
    """The commands of the README that start workers."""
    unit: str = ""
    """What its --timeout has after the number of seconds."""

    def timeout(self, seconds: int) -> str:
        """Return the flag that limits how long it waits."""
        return f"--timeout={seconds}{self.unit}"


def prepare_nodejs(folder: Path) -> Example:
    """Copy the example into a folder, and install what it needs."""
    _require_nodejs()
    here, run = _follow("nodejs", folder, env := _env())
    return Example("Node.js", here, ("node", str(here / "worker.js")), env, run)


def prepare_nodejs_client(folder: Path) -> Path:
    """Copy the agent and the operator's script into a folder, with what they need; return it."""
    _require_nodejs()
    here, _ = _follow("clients/node", folder, _env())
    return here


def share_nodejs_client(factory: pytest.TempPathFactory) -> Path:
    """Return what `prepare_nodejs_client` returns; it runs once for all processes of the tests."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "nodejs-client").open("a+") as note:
        fcntl.flock(note, fcntl.LOCK_EX)  # not for ever: each test has a limit
        note.seek(0)
        if path := note.read():
            return Path(path)
        made = prepare_nodejs_client(factory.mktemp("client"))
        note.write(str(made))
        return made


def _require_nodejs() -> None:
    for program in ("node", "npm"):
        assert shutil.which(program), f"the tests need {program}: install Node.js 18 or newer"


def prepare_go(folder: Path) -> Example:
    """Copy the example into a folder, and build it."""
    assert (SCRIPTS / "go").exists(), "the nightly tests need go: make nightly installs it"
    env = {
        **_env(),
        "CGO_ENABLED": "0",  # no C compiler is needed
        "GOCACHE": str(BUILD / "go-cache"),
        # pytest can delete the folder, and the cache serves other folders too.
        "GOFLAGS": "-modcacherw -trimpath",
        "GOPATH": str(folder / "go-path"),
        "GOTOOLCHAIN": "local",
    }
    if has_debian():
        env |= {"GOPROXY": make_module_proxy(BUILD).as_uri(), "GOSUMDB": "off"}
    here, run = _follow("go", folder, env)
    return Example("Go", here, (str(here / "worker"),), env, run, unit="s")


def _env() -> dict[str, str]:
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    return {**{k: v for k, v in os.environ.items() if k not in OF_MAKE}, "PATH": path}


def _follow(name: str, folder: Path, env: Mapping[str, str]) -> tuple[Path, tuple[Step, ...]]:
    """Run the first commands of a README in a copy; return the copy, and the other commands."""
    here = folder / "examples" / name
    generated = shutil.ignore_patterns("node_modules", "gen", "go.sum", "worker")
    shutil.copytree(REPOSITORY / "examples" / name, here, ignore=generated)
    (folder / "proto").symlink_to(REPOSITORY / "proto")
    first, *others = [one for one in find_blocks(here / "README.md") if one.language == "console"]
    shell = Shell(env, here)
    try:
        for step in first.steps():
            code = shell.run(step.command, LIMIT_S)
            assert code == 0, f"{step.command}: {code}\n{shell.text()}"
    finally:
        shell.close()
    return here, tuple(step for block in others for step in block.steps())
