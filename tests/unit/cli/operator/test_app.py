"""The operator's commands: where their options may stand, how they fail, and what they load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.cli import main as entry
from rallypoint.cli.commands.overview import MENU
from rallypoint.cli.operator import app, options
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.table import COMMANDS
from rallypoint.cli.operator.views.words import describe_job, find_urgency
from rallypoint.client.errors import (
    InvalidRequest,
    NotAllowed,
    RallypointError,
    Refused,
    Unavailable,
    UnknownJob,
    UnknownNode,
)
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration

LIMIT_S = 60
OTHERS = (
    "rallypoint.server",
    "rallypoint.agent",
    "rallypoint.elastic",
    "torch",
    "numpy",
    "structlog",
)

JOBS = (
    job_pb2.JobSummary(
        job_id="train",
        run=2,
        phase=job_pb2.JOB_PHASE_RUNNING,
        outcome=job_pb2.OUTCOME_OPEN,
        node_count=5,
        world_size=32,
        round=7,
        restart_count=1,
        max_restarts=3,
        age=to_duration(3 * 3_600_000 + 120_000),
        min_nodes=2,
        max_nodes=4,
    ),
    job_pb2.JobSummary(
        job_id="eval",
        run=1,
        phase=job_pb2.JOB_PHASE_CLOSED,
        outcome=job_pb2.OUTCOME_FAILED,
        round=1,
        age=to_duration(3_600_000),
        opened_at=Timestamp(seconds=1_000),
        closed_at=Timestamp(seconds=1_060),
        min_nodes=1,
        max_nodes=1,
        verdict="rank 0 on node a: exit code 1",
    ),
)
TABLE = """\
JOB    RUN  STATE    NODES  WORKERS  ROUND  RESTARTS  AGE      REASON
train  2    running  5/2:4  32       7      1/3       3h2m     -
eval   1    failed   0/1    0        1      0/0       59m ago  rank 0 on node a: exit code 1
"""
WAITING = job_pb2.JobSummary(
    job_id="resnet-50-of-the-vision-team",
    run=1,
    phase=job_pb2.JOB_PHASE_FORMING,
    outcome=job_pb2.OUTCOME_OPEN,
    age=to_duration(9_000),
    min_nodes=2,
    max_nodes=2,
    waiting="1 of 2 required nodes are ready; waiting for gpu-2 (lost 12 s ago)",
)
NARROW = """\
JOB                         STATE    NODES  REASON
resnet-50-of-the-vision-t…  forming  0/2    1 of 2 required nodes are ready; wa…
train                       running  5/2:4  -
eval                        failed   0/1    rank 0 on node a: exit code 1
"""
NARROWEST = """\
JOB            STATE    REASON
resnet-50-of…  forming  1 of 2 required
                        nodes are ready;
                        waiting for
                        gpu-2 (lost 12 s
                        ago)
train          running  -
eval           failed   rank 0 on node
                        a: exit code 1
"""


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Return a function that sets what the coordinator answers; it returns the requests."""

    def set_answer(result: Sequence[job_pb2.JobSummary] | BaseException) -> list[dict[str, Any]]:
        requests = list[dict[str, Any]]()

        def list_jobs(**request: Any) -> Sequence[job_pb2.JobSummary]:
            requests.append(request)
            if isinstance(result, BaseException):
                raise result
            return result

        client = SimpleNamespace(list_jobs=list_jobs)
        monkeypatch.setattr(Invocation, "client", property(lambda self: client))
        monkeypatch.delenv("COLUMNS", raising=False)
        return requests

    yield set_answer


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rallypoint", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def test_jobs_are_a_table(
    answer: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each job, in one word how it is, and why."""
    answer(JOBS)
    assert app.main("jobs", []) == 0
    lines = capsys.readouterr().out.splitlines()

    assert [line.rstrip() for line in lines] == TABLE.splitlines()


def test_failure_of_a_job_that_has_succeeded_is_its_last() -> None:
    """It is not the outcome."""
    job = job_pb2.JobSummary(verdict="node b was lost", outcome=job_pb2.OUTCOME_SUCCEEDED)
    before = job_pb2.JobSummary(verdict="node b was lost")

    assert describe_job(job)[-1] == "last failure: node b was lost"
    assert describe_job(before)[-1] == "node b was lost"


@pytest.mark.parametrize(("columns", "table"), [("80", NARROW), ("40", NARROWEST)])
def test_the_reason_of_a_job_can_be_read_in_a_narrow_terminal(
    columns: str,
    table: str,
    answer: Callable[..., list[dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other columns and long names give way."""
    answer([*JOBS, WAITING])
    monkeypatch.setenv("COLUMNS", columns)
    assert app.main("jobs", []) == 0

    assert capsys.readouterr().out == table


def test_jobs_that_wait_come_first() -> None:
    """Then those that run, then those that have ended, each with the latest first."""

    def one(name: str, age_s: int, **fields: Any) -> job_pb2.JobSummary:
        age = to_duration(age_s * 1000)
        return job_pb2.JobSummary(job_id=name, age=age, opened_at=Timestamp(seconds=1), **fields)

    found = [
        one("ended-long-ago", 50, closed_at=Timestamp(seconds=11)),
        one("ended", 100, closed_at=Timestamp(seconds=91)),
        one("runs", 100),
        one("began", 3),
        one("waits", 1_000, waiting="why"),
    ]

    assert [job.job_id for job in sorted(found, key=find_urgency)] == [
        *("waits", "began", "runs", "ended", "ended-long-ago"),
    ]


def test_jobs_are_json(
    answer: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """An array of protobuf's JSON, with the fields that are zero."""
    answer(JOBS)
    assert app.main("jobs", ["-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert [one["jobId"] for one in found] == ["train", "eval"]
    assert (found[1]["worldSize"], found[1]["outcome"]) == (0, "OUTCOME_FAILED")


def test_jobs_are_chosen(answer: Callable[..., list[dict[str, Any]]]) -> None:
    """By a prefix, and whether they have ended."""
    requests = answer([])
    app.main("jobs", ["tr", "--open"])
    app.main("jobs", [])

    assert [one["prefix"] for one in requests] == ["tr", ""]
    assert [len(one["phases"]) for one in requests] == [3, 0]


def test_no_jobs_is_a_line(
    answer: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error: a program that reads the table finds nothing; JSON is an empty array."""
    answer([])
    assert app.main("jobs", ["tr", "-c", "head"]) == 0
    found = capsys.readouterr()
    assert app.main("jobs", ["-o", "json"]) == 0

    assert (found.out, found.err) == (
        "",
        "head:50051 has no jobs whose names begin with 'tr'\n",
    )
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownJob("there is no job 'x'", job_id="x"), 3),
        (UnknownNode("there is no node 'x'", job_id="x", node_name="n"), 3),
        (RallypointError("gone", status="NOT_FOUND"), 3),
        (Refused("the job has ended"), 1),
        (InvalidRequest("too long", field="job_id"), 2),
        (NotAllowed("no token"), 77),
        (Unavailable("no answer"), 69),
        (KeyboardInterrupt(), 130),
    ],
)
def test_failed_call_has_its_exit_code(
    answer: Callable[..., list[dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
) -> None:
    """And one line, without a traceback; Ctrl-C has none."""
    answer(error)
    assert app.main("jobs", []) == code
    text = capsys.readouterr().err

    assert text == (f"rallypoint jobs: error: {error}\n" if code != 130 else "")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nope"], "unknown flag --nope"),
        (["--outptu", "json"], "unknown flag --outptu; did you mean --output?"),
        (["a", "b"], "unexpected argument 'b'"),
        (["--output", "xml"], "--output: 'xml' is not one of table, json"),
        (["--timeout", "0"], "--timeout: '0' is not within 0.001 and 2592000"),
        (["-c"], "-c needs a value"),
        (["-c", "a b"], "--coordinator: 'a b' is not HOST:PORT"),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and where the options are explained."""
    assert app.main("jobs", words) == 2
    found = capsys.readouterr().err

    assert found.lower().startswith(f"rallypoint jobs: error: {text}".lower()), found
    assert found.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "moved", "rest"),
    [
        (["-c", "head", "jobs", "x"], ["-c", "head"], ["jobs", "x"]),
        (["--coordinator=head", "--tls", "jobs"], ["--coordinator=head", "--tls"], ["jobs"]),
        (["jobs", "-c", "head"], [], ["jobs", "-c", "head"]),
        (["--nope", "jobs"], [], ["--nope", "jobs"]),
    ],
)
def test_options_may_stand_before_the_command(
    argv: list[str], moved: list[str], rest: list[str]
) -> None:
    """As with kubectl; an unknown one stays where it is."""
    assert options.split_options(argv) == (moved, rest)


def test_unreachable_coordinator_is_named() -> None:
    """With the reason, at once, and exit code 69."""
    done = run("-c", "127.0.0.1:1", "jobs")

    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == (
        "rallypoint jobs: error: no coordinator answers at 127.0.0.1:1: connection refused; "
        "find out why: rallypoint -c 127.0.0.1:1 doctor\n"
    )


def test_options_before_a_process_stay_an_error() -> None:
    """An agent has its own flags."""
    done = run("-c", "head", "agent", "jobs")

    assert (done.returncode, done.stderr) == (
        2,
        "rallypoint: error: unknown flag -c (see rallypoint --help)\n",
    )


def test_commands_have_help() -> None:
    """Every row of the table is a command of its module, or a group of some."""
    for name in COMMANDS:
        found = app.find(name)
        every = [found] if isinstance(found, options.Command) else [*found.values()]
        assert all(one.line for one in every), name
    assert {*entry.COMMANDS, *COMMANDS} == {*MENU.commands}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["new"], "rallypoint token new: error: no --name given (see rallypoint token new --help)"),
        (["nwe"], "rallypoint token: error: unknown command 'nwe'; did you mean new?"),
    ],
)
def test_group_needs_a_command_and_its_flags(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lack is one line."""
    assert app.main("token", words) == 2

    assert capsys.readouterr().err.startswith(text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["drain", "train"], "no NODE given"),
        (["verdict", "train", "0"], "RUN: '0' is not 1 or more"),
        (["verdict", "train", "one"], "RUN: 'one' is not a whole number"),
        (["events", "--last", "-1"], "--last: '-1' is not 0 or more"),
        (["drain", "train", "a", "--drain-timeout=x"], "--drain-timeout: 'x' is not a number"),
        (
            ["resize", "train", "1", "--max-restarts", "-2"],
            "--max-restarts: '-2' is not -1 or more",
        ),
    ],
)
def test_words_and_values_are_read_by_their_types(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any coordinator is asked."""
    name, *rest = words
    assert app.main(name, rest) == 2

    assert capsys.readouterr().err == (
        f"rallypoint {name}: error: {text} (see rallypoint {name} --help)\n"
    )


def test_help_shows_words_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """With its paragraphs and defaults; the flags of every command come last."""
    assert app.main("drain", ["--help"]) == 0
    shown = capsys.readouterr().out

    assert "Usage: rallypoint drain [flags] JOB NODE...\n" in shown
    assert "how long workers may run to save their work" in shown
    assert "[default: 60]" in shown
    assert shown.index("--drain-timeout") < shown.index("Flags of every command:")
    assert "--wait waits until all of them have left.\n\nUsage: " in shown


def test_commands_load_no_process() -> None:
    """Neither server, agent nor torch, although they may be installed; nor a logger."""
    program = (
        "import sys\n"
        "from rallypoint.cli.operator.app import COMMANDS, find, main\n"
        "[find(name) for name in COMMANDS]\n"
        "assert main('jobs', ['-c', '127.0.0.1:1']) == 69\n"
        "import rallypoint.client.sync\n"
        f"print(*(name for name in {OTHERS} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


HOSTILE = "no\x1b[2J\x07\x00\N{RIGHT-TO-LEFT OVERRIDE}\x9b\r\nrallypoint jobs: error: forged"


@pytest.mark.parametrize("error", [Refused, Unavailable])
def test_errors_of_a_coordinator_are_one_printable_line(
    answer: Callable[..., list[dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
    error: type[RallypointError],
) -> None:
    """A false coordinator writes no control character and no line to the terminal."""
    answer(error(HOSTILE))
    assert app.main("jobs", []) != 0
    line, end = capsys.readouterr().err.split("\n")

    assert line.startswith("rallypoint jobs: error: no") and line.isprintable()
    assert end == ""


def test_json_has_escapes_for_what_is_not_printable(
    answer: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal shows JSON too; a program reads the same text."""
    hostile = f"{HOSTILE}\N{MUSICAL SYMBOL BEGIN BEAM} é"
    answer((job_pb2.JobSummary(job_id="train", verdict=hostile),))
    assert app.main("jobs", ["-o", "json"]) == 0
    text = capsys.readouterr().out

    assert [char for char in text if not char.isprintable() and char != "\n"] == []
    assert json.loads(text)[0]["verdict"] == hostile
    assert "é" in text
