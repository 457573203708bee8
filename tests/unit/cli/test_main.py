"""The command `rallypoint`: its commands, and what it says without one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rallypoint.cli import main
from rallypoint.cli.commands import overview
from rallypoint.cli.operator.table import COMMANDS as operator_commands

LIMIT_S = 60


def test_commands_are_those_of_help() -> None:
    """What --help lists can be run, and the other way round."""
    assert {*main.COMMANDS, *operator_commands} == {*overview.MENU.commands}


@pytest.mark.parametrize("name", main.COMMANDS)
def test_command_gets_the_words_after_it(name: str) -> None:
    """As they are, also those that look like flags of `rallypoint`."""
    assert overview.MENU.choose([name, "--help", "x"]) == (name, ["--help", "x"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no command given"),
        (["agnet"], "unknown command 'agnet'; did you mean agent?"),
        (["node-agent"], "unknown command 'node-agent'; did you mean agent?"),
        (["--nope"], "unknown flag --nope (see rallypoint --help)"),
    ],
)
def test_bad_command_is_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and what to do."""
    with pytest.raises(SystemExit) as caught:
        overview.MENU.choose(argv)
    text = capsys.readouterr().err

    assert caught.value.code == 2
    assert text.startswith(f"rallypoint: error: {words}") and text.count("\n") == 1


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize("module", ["rallypoint", "rallypoint.cli.main"])
def test_modules_run_the_command(module: str) -> None:
    """`python -m rallypoint`, and the module that one finds in a traceback."""
    assert run("-m", module, "--version").stdout.startswith("rallypoint 0.")
    assert run("-m", module, "--help").stdout == overview.MENU.help() + "\n"
    assert run("-m", module, "--help-all").stdout == overview.MENU.help() + "\n"
    assert run("-m", module).returncode == 2


@pytest.mark.parametrize("name", main.COMMANDS)
def test_errors_carry_the_command_as_typed(name: str) -> None:
    """Not the name of the other way to start it."""
    done = run("-m", "rallypoint", name, "--nope")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"rallypoint {name}: error: unknown flag --nope (see rallypoint {name} --help)\n"
    )


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("agent", "rallypoint.cli.commands.coordinator rallypoint.server"),
        ("coordinator", "rallypoint.cli.commands.agent rallypoint.agent"),
        ("journal", "rallypoint.cli.commands.coordinator rallypoint.server rallypoint.agent"),
    ],
)
def test_chosen_command_alone_is_imported(name: str, others: str) -> None:
    """A launch is not slower for the commands beside it, and reading flags loads no gRPC."""
    program = (
        "import sys\n"
        f"sys.argv[1:] = [{name!r}, '--help']\n"
        "from rallypoint.cli.main import rallypoint\n"
        "try: rallypoint()\n"
        "except SystemExit: pass\n"
        f"others = {[*others.split(), 'grpc', 'argparse', 'structlog']}\n"
        "print(*(name for name in others if name in sys.modules), file=sys.stderr)"
    )
    done = run("-c", program)

    assert (done.returncode, done.stderr.strip()) == (0, "")
