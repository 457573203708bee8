"""The units of examples/systemd."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from rallypoint.base import exit_codes
from rallypoint.cli.commands.agent.command import build_parser as build_agent_parser
from rallypoint.cli.commands.coordinator import build_parser as build_coordinator_parser

FOLDER = Path(__file__).parents[3] / "examples" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
PARSERS = {"agent": build_agent_parser(), "coordinator": build_coordinator_parser()}


def read_command(unit: Path) -> list[str]:
    """Return the words of ExecStart, with a value for each variable and specifier."""
    text = unit.read_text().replace("\\\n", " ")
    found = re.search(r"^ExecStart=(.+)$", text, re.MULTILINE)
    assert found is not None
    return shlex.split(re.sub(r"\$\{\w+\}|%i", "x", found[1]))


def test_there_are_two_units() -> None:
    """A coordinator, and a template of agents."""
    assert [unit.name for unit in UNITS] == [
        "rallypoint-agent@.service",
        "rallypoint-coordinator.service",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing, if the program is where the unit says."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here: install systemd")
    program = shutil.which("true")
    assert program is not None
    text = unit.read_text().replace("/opt/rallypoint/bin/rallypoint", program)
    copy = tmp_path / unit.name.replace("@.", "@train.")
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_commands_know_the_flags(unit: Path) -> None:
    """The commands accept the flags of the units."""
    _, name, *words = read_command(unit)
    values = {"$COMMAND": ["train.py"], "$EXTRA_FLAGS": []}
    read = PARSERS[name].read([one for word in words for one in values.get(word, [word])], {})

    assert sum(word.startswith("--") for word in words) == len(read.given)


def test_agents_restart_only_what_may_run_again() -> None:
    """Exit codes that mean the end of the job are no reason for another start."""
    text = (FOLDER / "rallypoint-agent@.service").read_text()
    found = re.search(r"^RestartPreventExitStatus=(.+)$", text, re.MULTILINE)
    assert found is not None

    final = {exit_codes.EXIT_NO_REQUEUE, exit_codes.EXIT_CANCELLED}
    assert final <= set(map(int, found[1].split()))
