"""The wheel as a user has it: installed into a fresh environment, where it runs a job."""

from __future__ import annotations

import re
import select
import subprocess
import sys
import venv
from pathlib import Path

from steps.artifacts import Built
from steps.commands import NotReleased, run
from steps.tree import Release

START_LIMIT_S = 30
END_LIMIT_S = 30
LISTENING = re.compile(r"listening on \S+:(\d+)")


def install(release: Release, built: Built, repository: Path, folder: Path) -> Path:
    """Return the interpreter of a new environment with the wheel and the pinned dependencies.

    The environment has no pip, which would be part of the SBOM. The wheel is found by its name,
    so that no path of this machine is recorded in it.

    Raises:
        NotReleased: it cannot be installed, or something that it needs is missing.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    options = ["--quiet", "--find-links", str(built.wheel.parent), "--only-binary", "rallypoint"]
    pins = ["--constraint", str(repository / "constraints.txt")]
    run([*pip, "install", *options, *pins, f"rallypoint=={release.version}"], folder)
    run([*pip, "check"], folder)
    return python


def run_job(commands: Path, port: str, folder: Path) -> None:
    """Run a job of one node.

    Raises:
        NotReleased: it failed.
    """
    job = ["--job-id", "release", "--nproc-per-node", "2", "--no-python", "true"]
    run([str(commands / "node-agent"), "--coordinator", f"localhost:{port}", *job], folder)


def try_out(python: Path, release: Release, folder: Path) -> None:
    """Start a coordinator with a journal, run a job, stop it, and check the journal.

    Raises:
        NotReleased: a command failed or took too long, or its version is another one.
    """
    folder.mkdir()
    commands = python.parent
    version = run([str(commands / "rallypoint"), "--version"], folder).strip()
    if version != f"rallypoint {release.version}":
        raise NotReleased(f"the installed command says {version!r}, not {release.version}")
    state = f"sqlite:{folder / 'journal' / 'journal.sqlite'}"
    log = folder / "coordinator.log"
    words = [str(commands / "coordinator"), "--host", "localhost", "--port", "0", "--state", state]
    with (
        log.open("wb") as errors,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, cwd=folder) as coordinator,
    ):
        try:
            run_job(commands, _await_port(coordinator, log), folder)
            coordinator.terminate()
            code = coordinator.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise NotReleased("the installed coordinator does not stop") from error
        finally:
            coordinator.kill()
    if code:
        raise NotReleased(f"the installed coordinator ended with {code}:\n{log.read_text()}")
    run([str(commands / "rallypoint"), "journal", "verify", state], folder)


def _await_port(coordinator: subprocess.Popen[bytes], log: Path) -> str:
    """Return the port of the line that a coordinator prints when it listens."""
    assert coordinator.stdout is not None
    ready, _, _ = select.select([coordinator.stdout], [], [], START_LIMIT_S)
    line = coordinator.stdout.readline().decode() if ready else ""
    found = LISTENING.search(line)
    if not found:
        raise NotReleased(f"the installed coordinator does not start:\n{log.read_text()}")
    return found[1]
