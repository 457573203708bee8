"""Small parts of the commands: logs, flags that contradict each other, and what they print."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading

import pytest
import structlog
from msgspec.structs import replace

from rallypoint.agent.core.leaving.away import Absence
from rallypoint.base import log
from rallypoint.base.exit_codes import EXIT_UNREACHABLE
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import format_value
from rallypoint.cli import main
from rallypoint.cli.commands import overview
from rallypoint.cli.commands.coordinator import build_parser, prepare
from rallypoint.cli.commands.protection import read_protection
from rallypoint.cli.logs import TextRenderer, configure_logs
from rallypoint.cli.operator.table import COMMANDS as operator_commands
from rallypoint.cli.report.reports import Reports
from rallypoint.cli.terminal import join_words, wants_colours

# --- The log: aligned lines of text, colours on a terminal only, JSON on request ---


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def render(has_colours: bool = False, columns: int = 0, **fields: object) -> str:
    known = {"timestamp": "2026-11-21 14:03:11", "level": "info", "event": "round_began"}
    renderer = TextRenderer(has_colours=has_colours, find_columns=lambda: columns)
    return renderer(None, "info", {**known, **fields})


def test_line_is_aligned() -> None:
    """Time, level, event, then the fields in the order given."""
    assert render(round=1, ranks=[0, 1]) == (
        "2026-11-21 14:03:11 info    round_began              round=1 ranks=0,1"
    )
    assert render(level="warning", event="x" * 30, a=1) == (
        f"2026-11-21 14:03:11 warning {'x' * 30} a=1"
    )


def test_line_without_fields_ends_with_its_event() -> None:
    """No trailing spaces."""
    assert render() == "2026-11-21 14:03:11 info    round_began"


def test_traceback_follows_the_line() -> None:
    """An exception is readable, not one long field."""
    assert render(exception="Traceback\n  x", a=1).splitlines()[1:] == ["Traceback", "  x"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("word", "word"),
        ("a/b:c,d", "a/b:c,d"),
        ("two words", "'two words'"),
        ("it's", '"it\'s"'),
        ("a=b", "'a=b'"),
        ("a\nb", "'a\\nb'"),
        ("", "''"),
        (2.5, "2.5"),
        (None, "None"),
        ((1, 2), "1,2"),
        ({2, 1}, "1,2"),
    ],
)
def test_value_reads_as_one_word(value: object, expected: str) -> None:
    """Whatever would not is quoted, and no value breaks the line."""
    assert format_value(value) == expected


def test_colours_are_for_terminals_that_want_them() -> None:
    """Not for a file, not with NO_COLOR, not for a dumb terminal."""
    assert wants_colours(Screen(), {})
    assert wants_colours(Screen(), {"NO_COLOR": ""})
    assert not wants_colours(io.StringIO(), {})
    assert not wants_colours(Screen(), {"NO_COLOR": "1"})
    assert not wants_colours(Screen(), {"TERM": "dumb"})


def test_colours_change_no_text() -> None:
    """A coloured line without its escapes is the plain one."""
    coloured = render(has_colours=True, a=1)

    assert "\x1b[" in coloured
    assert render(a=1) == _without_escapes(coloured)


@pytest.mark.parametrize("has_colours", [False, True])
def test_long_line_is_wrapped_between_words(has_colours: bool) -> None:
    """All but its first line are below the event; a longer word is not broken."""
    why = f"rank 0 on node a failed first: {'x' * 70} is no such thing"
    line = render(has_colours, columns=80, round=1, why=why)

    assert _without_escapes(line).split("\n") == [
        "2026-11-21 14:03:11 info    round_began              round=1 why='rank 0 on node",
        f"{'':28}a failed first:",
        f"{'':28}{'x' * 70}",
        f"{'':28}is no such thing'",
    ]


def test_wrapped_line_has_the_words_of_the_whole_one() -> None:
    """In a narrow terminal, too, where the indent is small."""
    why = "it was not set, and several workers share this node"
    whole, narrow = render(a=1, why=why), render(columns=50, a=1, why=why)

    assert whole.split() == narrow.split()
    assert [line[:5] for line in narrow.split("\n")] == ["2026-", "    a", "    s"]
    assert max(map(len, narrow.split("\n")[1:])) <= 50


def test_words_without_a_limit_are_one_line() -> None:
    """As for a file."""
    words = [(word, len(word)) for word in ("one", "", "two" * 50)]

    assert join_words(words, 0, 4) == f"one  {'two' * 50}"


PROGRAM = """
import logging, os, sys, threading, warnings
from rallypoint.cli.logs import configure_logs, take_python_logs
configure_logs("info", sys.argv[1])
take_python_logs()
logging.getLogger("grpc._common").error("bad %s", "thing")
logging.getLogger("quiet").info("unseen")
warnings.warn("old", DeprecationWarning, stacklevel=1)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("it broke")
"""


def run_program(style: str) -> list[str]:
    argv = [sys.executable, "-W", "always", "-c", PROGRAM, style]
    done = subprocess.run(argv, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0
    return done.stderr.splitlines()


def test_libraries_log_json_too() -> None:
    """What they log by Python's logging, and warnings, are events; each line is JSON."""
    bad, old, broke = map(json.loads, run_program("json"))

    assert {event["event"] for event in (bad, old, broke)} == {"library_logged"}
    assert (bad["level"], bad["logger"], bad["message"]) == ("error", "grpc._common", "bad thing")
    assert (old["level"], old["logger"]) == ("warning", "py.warnings")
    assert "DeprecationWarning: old" in old["message"]
    assert broke["message"] == "it broke"
    assert broke["exception"].endswith("ZeroDivisionError: division by zero")


def test_libraries_log_aligned_lines_too() -> None:
    """A traceback follows its line."""
    lines = run_program("text")

    assert lines[0].endswith("logger=grpc._common message='bad thing'")
    assert " warning library_logged           logger=py.warnings message=" in lines[1]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def _without_escapes(text: str) -> str:
    import re

    return re.sub(r"\x1b\[\d*m", "", text)


def test_formats_and_levels() -> None:
    """Text by default; JSON has the same fields; what is below the level is left out."""
    text, lines = io.StringIO(), io.StringIO()
    configure_logs("info", "text", text)
    log.get_logger().debug("unseen")
    log.get_logger().info("seen", a="b c")
    configure_logs("warning", "json", lines)
    log.get_logger().info("unseen")
    log.get_logger().warning("seen", a="b c")

    assert text.getvalue().count("\n") == 1 and text.getvalue().endswith(" a='b c'\n")
    fields = json.loads(lines.getvalue())
    assert [*fields] == ["timestamp", "level", "event", "a"]
    assert [*fields.values()][1:] == ["warning", "seen", "b c"]


def test_first_event_imports_no_renderer_of_others() -> None:
    """structlog's own imports rich where that is installed: 27 ms before the first worker."""
    program = (
        "import sys\n"
        "from rallypoint.base.log import get_logger\n"
        "from rallypoint.cli.logs import configure_logs\n"
        "configure_logs('info', 'text')\n"
        "get_logger().info('seen')\n"
        "sys.exit('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)

    assert done.returncode == 0
    assert b" seen" in done.stderr


# --- What an agent logs while no coordinator answers ---

NEVER = Absence(
    why="cannot connect to head:7",
    left_ms=569_400,
    timeout_ms=600_000,
    has_begun=False,
    was_reached=False,
)


def logged(absence: Absence) -> dict[str, object]:
    """Return the line of the log."""
    reports = Reports(print, "rallypoint agent", "train.py", "head:7", "", FileThread("report"))
    with structlog.testing.capture_logs() as lines:
        reports.disconnected(absence)
    (line,) = lines
    return dict(line)


def test_first_line_says_what_to_start() -> None:
    """An agent that has never reached a coordinator says how to start one, and how long is left."""
    line = logged(NEVER)

    assert line["event"] == "coordinator_not_reached"
    assert line["hint"] == "start one there: rallypoint coordinator --port 7"
    assert line["then"] == "no workers run yet; retrying for 570 s (--coordinator-timeout)"


def test_coordinator_that_was_there_needs_no_such_hint() -> None:
    """It may be back soon, and must not get a second one beside it."""
    line = logged(replace(NEVER, was_reached=True))

    assert "hint" not in line


def test_coordinator_that_answers_needs_no_start(capsys: pytest.CaptureFixture[str]) -> None:
    """It says why it cannot serve the agent now, which the agent repeats when it gives up."""
    away = replace(NEVER, why="etcd cannot be reached", is_answered=True)
    reports = Reports(print, "rallypoint agent", "train.py", "head:7", "", FileThread("report"))
    with structlog.testing.capture_logs() as lines:
        reports.disconnected(away)
    assert ["etcd cannot be reached"] == [line["why"] for line in lines if "hint" not in line]
    reports.ended(EXIT_UNREACHABLE, "no coordinator answered for 600 s", always_print=False)
    shown = capsys.readouterr().out
    assert shown.endswith("(head:7); the last answer: etcd cannot be reached\n")

    reports.disconnected(NEVER)
    reports.ended(EXIT_UNREACHABLE, "no coordinator answered for 600 s", always_print=False)
    assert "start one there" in capsys.readouterr().out


def test_what_the_agent_does_depends_on_its_workers() -> None:
    """Workers keep running without a limit; after they have ended, the agent gives up."""
    begun = replace(NEVER, has_begun=True, was_reached=True)

    assert logged(replace(begun, left_ms=None))["then"] == (
        "workers keep running; an agent without workers gives up after 600 s "
        "(--coordinator-timeout)"
    )
    assert logged(begun)["then"] == "no workers run any more; retrying for 570 s"


def test_reason_of_the_end_is_one_printable_line() -> None:
    """The coordinator, or what poses as it, may have written it."""
    printed = list[str]()
    files = FileThread("report")
    reports = Reports(printed.append, "rallypoint agent", "train.py", "head:7", "", files)
    reports.ended(1, "released: \x1b[2J\x07no\nrallypoint agent: forged", always_print=False)

    assert printed == [
        "rallypoint agent: released: \N{REPLACEMENT CHARACTER}no rallypoint agent: forged"
    ]


# --- The scheduler's error file, where the machine has no thread to write it ---


def test_end_is_reported_without_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line for a person is printed, and the log says why the file is missing."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    printed: list[str] = []
    files = FileThread("report")
    reports = Reports(printed.append, "rallypoint agent", "train.py", "head:7", "/e.json", files)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with structlog.testing.capture_logs() as lines:
        reports.ended(70, "a bug", always_print=False)

    assert printed == ["rallypoint agent: a bug"]
    assert [(line["event"], line["path"]) for line in lines] == [
        ("error_file_not_written", "/e.json")
    ]
    assert "can't start new thread" in lines[0]["why"]


# --- Flags of `coordinator` that contradict each other ---

NOWHERE = "etcd://127.0.0.1:1/p"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ((f"--state={NOWHERE}",), "needs --advertise HOST:PORT"),
        ((f"--state={NOWHERE}", "--host=::"), "needs --advertise HOST:PORT"),
        ((f"--state={NOWHERE}", "--advertise=0.0.0.0:1"), "every address of a host"),
        ((f"--state={NOWHERE}", "--advertise=a:b"), "'a:b' is not HOST or HOST:PORT"),
        ((f"--state={NOWHERE}", "--advertise=h", "--shards=0"), "not 1 or more"),
        ((f"--state={NOWHERE}", "--advertise=h", "--shards=1025"), "1 to 1024"),
        (("--state=etcd://h:2379", "--advertise=h"), "has no prefix"),
        (("--state=etcd://h/p?password=x", "--advertise=h"), "unknown option 'password'"),
        (("--state=memory", "--advertise=h"), "--advertise is only for --state etcd://"),
        (
            (f"--state={NOWHERE}", "--advertise=h", "--until-idle=1"),
            "--until-idle is not for --state etcd://",
        ),
        (("--until-idle=soon", "--port=0"), "'soon' is not a number of seconds"),
        (("--shards=4", "--port=0"), "--shards is only for --state etcd://"),
        (("--tls-cert=c", "--port=0"), "--tls-cert needs --tls-key"),
        (("--tls-key=k", "--port=0"), "--tls-key needs --tls-cert"),
        (("--tls-client-ca=a", "--port=0"), "--tls-client-ca needs --tls-cert"),
        (("--tls-cert=c", "--tls-key=k", "--tls-ca=a", "--port=0"), "--tls-ca is only for"),
        (("--require-auth", "--port=0"), "--require-auth: anyone could call"),
    ],
)
def test_flags_that_do_not_fit(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], part: str
) -> None:
    """Each is a mistake on the command line: one line, and 2."""
    with pytest.raises(SystemExit) as ended:
        args = build_parser().read(flags, {})
        prepare(args, read_protection(args, {}))
    lines = capsys.readouterr().err.splitlines()

    assert (2, 1) == (ended.value.code, len(lines))
    assert part in lines[0]


# --- The command `rallypoint`: its commands, and what it says without one ---

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
