"""What may stand at the cursor of a command line, and what each shell gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.cli.commands.overview import MENU
from rallypoint.cli.operator import candidates
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.client.errors import Unavailable
from rallypoint.v1 import job_pb2, node_pb2


def complete(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert candidates.main(words, MENU.commands) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Answer with two jobs and two nodes; return what was asked."""
    asked = list[dict[str, Any]]()

    def list_jobs(**request: Any) -> list[job_pb2.JobSummary]:
        asked.append(request)
        names = ("train:1", "train 2", "bad\nname")
        return [job_pb2.JobSummary(job_id=name, phase=job_pb2.JOB_PHASE_RUNNING) for name in names]

    def list_nodes(job_id: str) -> list[node_pb2.Node]:
        asked.append({"job_id": job_id})
        return [node_pb2.Node(name="a", address="10.0.0.1"), node_pb2.Node(name="b", spare=True)]

    client = SimpleNamespace(list_jobs=list_jobs, list_nodes=list_nodes)
    monkeypatch.setattr(Invocation, "client", property(lambda self: client))
    return asked


@pytest.mark.parametrize(
    ("words", "kind", "begun"),
    [
        (["can"], "", "can"),
        (["cancel", "tr"], "JOB", "tr"),
        (["-c", "head", "cancel", "tr"], "JOB", "tr"),
        (["cancel", "-r", "why", "tr"], "JOB", "tr"),
        (["cancel", "--", "-tr"], "JOB", "-tr"),
        (["cancel", "train", ""], "", ""),
        (["cancel", "-r", ""], "", ""),
        (["drain", "train", "a", ""], "NODE", ""),
        (["barrier", "show", "train", ""], "BARRIER", ""),
        (["kv", "list", "train", ""], "", ""),
        (["jobs", ""], "JOB", ""),
        (["jobs", "--tls-ca", "/etc"], "FILE", "/etc"),
        (["--tls-ca", "/etc"], "FILE", "/etc"),
        (["jobs", "--tls-ca=/etc"], "FILE", "/etc"),
        (["jobs", "--tls-server-name", ""], "", ""),
        (["--context", ""], "CONTEXT", ""),
        (["context", "use", ""], "CONTEXT", ""),
        (["events", "--kind", ""], "KIND", ""),
        (["agent", "tra"], "FILE", ""),
        (["nonsense", ""], "", ""),
        (["kv", "nonsense", ""], "", ""),
    ],
)
def test_the_cursor_decides(words: list[str], kind: str, begun: str) -> None:
    """Options take their values, wherever they stand; arguments are counted."""
    found = candidates.find(words, MENU.commands)

    assert (found.kind, found.begun) == (kind, begun)


def test_commands_and_options_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    """With what each does; values of choices, too."""
    assert complete(capsys, "fish", "co") == [
        "words",
        "completion\tprint a script for bash, zsh or fish",
        "context\tsave coordinators under names, and choose one",
        "coordinator\tserve jobs: membership, ranks and restarts (also: coordinator)"[:72],
        "cordon\tkeep nodes out of later rounds",
    ]
    assert complete(capsys, "fish", "cancel", "--r") == [
        "words",
        "--reason\treason to record, for people",
        "--run\tonly this run; 0: the latest",
    ]
    assert complete(capsys, "fish", "jobs", "--output=j") == ["words", "--output=json\t"]
    assert [line.partition("\t")[0] for line in complete(capsys, "zsh", "kv", "")] == [
        *("words", "delete", "get", "list", "put", "watch"),
    ]


def test_names_come_from_the_coordinator(
    jobs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that begin so, and that a terminal can show; nodes that are given already are not."""
    assert complete(capsys, "zsh", "cancel", "tr") == [
        "words",
        "train 2\trunning",
        "train:1\trunning",
    ]
    assert complete(capsys, "zsh", "drain", "train:1", "a", "") == ["words", "b\tspare"]
    assert jobs == [{"prefix": "tr", "page_size": 200}, {"job_id": "train:1"}]


def test_bash_gets_what_it_inserts(
    jobs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """After a colon it inserts only the rest; what it would interpret is escaped."""
    assert complete(capsys, "bash", " :=", "rallypoint cancel train:") == ["words", "1"]
    assert complete(capsys, "bash", " =", "rallypoint cancel train:") == ["words", "train:1"]
    assert complete(capsys, "bash", ":=", "rallypoint cancel tr") == [
        *("words", "train\\ 2", "train:1"),
    ]
    assert complete(capsys, "bash", ":=", "rallypoint jobs --output=") == ["words", "json", "table"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rallypoint", []),
        ("rallypoint ", [""]),
        ("rallypoint cancel tr", ["cancel", "tr"]),
        ("rallypoint cancel 'a b", ["cancel", "a b"]),
        ('rallypoint cancel "a b', ["cancel", "a b"]),
        ("rallypoint cancel a\\ b", ["cancel", "a b"]),
        ("rallypoint cancel a\\ ", ["cancel", "a "]),
        ("rallypoint  jobs  ", ["jobs", ""]),
    ],
)
def test_a_line_of_bash_is_split_as_bash_does(line: str, words: list[str]) -> None:
    """Also within quotes that are still open."""
    assert candidates.split_line(line) == words


def test_a_coordinator_that_fails_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No names, no message, and no failure of the shell."""

    def fail(self: Invocation) -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(Invocation, "client", property(fail))
    assert candidates.main(["fish", "status", ""], MENU.commands) == 0
    found = capsys.readouterr()

    assert (found.out, found.err) == ("words\n", "")


def test_wrong_calls_of_a_script_are_refused() -> None:
    """They would be a mistake of ours."""
    assert candidates.main([], MENU.commands) == 2
    assert candidates.main(["bash", "only"], MENU.commands) == 2
