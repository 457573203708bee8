"""A command that a message recommends can be pasted: it asks the coordinator that was asked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from rallypoint.cli.operator import app
from rallypoint.cli.operator.common import Common
from rallypoint.cli.operator.explanations import NEXT_STEPS
from rallypoint.cli.operator.hints import reaching_as, recommend
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.table import COMMANDS
from rallypoint.client.errors import Refused, UnknownJob, UnknownNode
from rallypoint.v1 import job_pb2, node_pb2
from support.operator import transcripts

REPOSITORY = Path(__file__).parents[4]
PORTIONS = ("agent", "base", "cli", "client", "elastic", "proto", "server")
ASK_NOTHING = ("certs", "completion", "context", "token")
"""Commands that ask no coordinator."""
ASKING = "|".join(name for name in COMMANDS if name not in ASK_NOTHING)
COMMAND = re.compile(rf"\brallypoint(?P<options>(?: -\S+ \S+)*) (?:{ASKING})\b(?!: error)")
GIVEN = "head:7"


def find_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield node.lineno, node.value


def test_no_text_spells_a_command_that_asks_a_coordinator() -> None:
    """`recommend` fills it in; agents and coordinators recommend none at all."""
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {text}"
        for portion in PORTIONS
        for path in sorted((REPOSITORY / portion).rglob("*.py"))
        if not path.name.endswith("_reference.py")
        for line, text in find_texts(path)
        if COMMAND.search(text)
    ]

    assert found == []


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a client of a coordinator with one job of one node."""
    made = Mock(
        list_jobs=Mock(return_value=[job_pb2.JobSummary(job_id="train")]),
        list_nodes=Mock(return_value=[node_pb2.Node(name="node-a")]),
        list_barriers=Mock(return_value=[]),
        list_keys=Mock(return_value=[]),
    )
    monkeypatch.setattr(Invocation, "check_reachable", lambda self: None)
    monkeypatch.setattr(Invocation, "open_client", lambda self, limit_s: made)
    return made


def check(text: str) -> int:
    """Check all commands of an output; return how many there are."""
    found = [match["options"] for match in COMMAND.finditer(" ".join(text.split()))]
    assert "{" not in text
    assert {*found} <= {f" -c {GIVEN}"}
    return len(found)


def test_views_repeat_the_address() -> None:
    """All of them, of jobs in every state, in each width."""
    count = 0
    for name in transcripts.CASES:
        for width in transcripts.WIDTHS:
            text = transcripts.run(*transcripts.find_case(name), width, "-c", GIVEN)
            count += check(text)

    assert count > len(transcripts.WIDTHS) * 10


@pytest.mark.parametrize("refusal", NEXT_STEPS)
def test_refusals_repeat_the_address(
    refusal: str, client: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the job that the command is about."""
    error = Refused("no")
    error.refusal = refusal
    client.restart_job.side_effect = error
    app.main("restart", ["train", "-c", GIVEN])
    shown = capsys.readouterr().err

    assert check(shown) == ("{rallypoint}" in NEXT_STEPS[refusal])
    assert "JOB" not in shown


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("restart", "nope"), "list them: rallypoint -c head:7 jobs"),
        (("cordon", "nope", "other"), "list them: rallypoint -c head:7 status nope"),
        (("barrier", "show", "nope", "saved"), "rallypoint -c head:7 barrier list nope"),
    ],
)
def test_near_names_repeat_the_address(
    words: tuple[str, ...], hint: str, client: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no near name is known."""
    client.restart_job.side_effect = UnknownJob("there is none", job_id="nope")
    client.cordon_node.side_effect = UnknownNode("none", job_id="nope", node_name="other")
    app.main(words[0], [*words[1:], "-c", GIVEN])

    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("common", "text"),
    [
        (Common(), "rallypoint status 'my job'"),
        (Common(coordinator=GIVEN), "rallypoint -c head:7 status 'my job'"),
        (Common(context="prod"), "rallypoint --context prod status 'my job'"),
        (
            Common(coordinator=GIVEN, tls=True, token_file="my token"),
            "rallypoint --tls -c head:7 --token-file 'my token' status 'my job'",
        ),
    ],
)
def test_all_that_leads_to_the_coordinator_is_repeated(common: Common, text: str) -> None:
    """Quoted for a shell."""
    with reaching_as(common):
        assert recommend("{rallypoint} status {job}", job="my job") == text

    assert recommend("{rallypoint} resize {job} {node}", job="") == "rallypoint resize JOB NODE"
