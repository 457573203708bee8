"""What the commands print about jobs in every state: transcripts, which a person has looked at.

If one differs on purpose: PYTHONPATH=tests python tests/support/operator/transcripts.py
"""

from __future__ import annotations

import json
import re

import pytest
from rich.text import Span

from rallypoint.cli.operator.views.words import describe_step
from rallypoint.v1 import job_pb2
from support.operator import picture, scenes, transcripts


@pytest.mark.parametrize("name", transcripts.CASES)
def test_what_is_printed(name: str) -> None:
    """In terminals of 80 and 200 columns, and in a pipe."""
    expected = (transcripts.FOLDER / f"{name}.txt").read_text(encoding="utf-8")

    assert transcripts.print_scene(*transcripts.find_case(name)) == expected


def test_picture_is_fresh() -> None:
    """Of the README. If this fails: PYTHONPATH=tests python tests/support/operator/picture.py"""
    assert picture.FILE.read_text(encoding="utf-8") == picture.draw()


def test_no_transcript_is_left_over() -> None:
    """Each belongs to a case."""
    written = {path.stem for path in transcripts.FOLDER.glob("*.txt")}

    assert written == {*transcripts.CASES}


@pytest.mark.parametrize("name", transcripts.CASES)
def test_lines_fit(name: str) -> None:
    """No line is longer than the terminal, none ends with a space, and none has a colour."""
    text = transcripts.run(*transcripts.find_case(name), 80)

    assert [line for line in text.splitlines() if len(line) > 80 or line != line.rstrip()] == []
    assert "\x1b" not in text


def test_every_kind_of_wait_has_a_scene() -> None:
    """But the one that only a node sees."""
    shown = {scenes.show(scene()).waiting.kind for scene in scenes.WAITS.values()}
    every = {*job_pb2.WaitKind.values()}

    assert every - shown == {job_pb2.WAIT_KIND_SPARE}


@pytest.mark.parametrize(("age_s", "is_late"), [(11, False), (13, True), (86_400, True)])
def test_late_step_is_yellow(age_s: int, is_late: bool) -> None:
    """After ten times the usual gap; the coordinator does not know that it hangs."""
    round = scenes.show(scenes.stuck()).round
    round.since_step.FromSeconds(age_s)

    assert ([Span(0, len(describe_step(round)), "yellow")] if is_late else []) == describe_step(
        round
    ).spans


def test_a_pipe_gets_a_row_in_one_line() -> None:
    """A program reads it by its lines."""
    text = transcripts.run("status", scenes.show(scenes.recovered()), 0)
    (row,) = (line for line in text.splitlines() if line.startswith("gpu-3"))

    assert re.split(r"\s{2,}", row) == [
        *("gpu-3", "-", "lost", "-", "-"),
        "12m6s ago: its connection broke and was not restored within 0.5 s",
    ]


@pytest.mark.parametrize("command", ["status", "explain", "verdict"])
def test_json_is_the_answer(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With every field that the coordinator has set, and the zeros."""
    job = scenes.show(scenes.pausing())
    text = transcripts.run(f"{command}", job, 0, "--output", "json")
    found = json.loads(text)

    assert found["jobId"] == scenes.JOB
    if command == "verdict":
        assert found["verdict"]["culprit"]["nodeName"] == "gpu-1"
        assert found["verdict"]["culprit"]["exit"]["exitCode"] == 1
    else:
        assert found["waiting"]["kind"] == "WAIT_KIND_BACKOFF"


@pytest.mark.parametrize(("command", "field"), [("explain", "waiting"), ("verdict", "verdict")])
def test_nothing_is_null_in_json(command: str, field: str) -> None:
    """A program need not look for a field."""
    text = transcripts.run(command, scenes.show(scenes.nothing()), 0, "-o", "json")

    assert json.loads(text)[field] is None


def test_a_name_cannot_change_the_terminal() -> None:
    """Texts of others are printed without control characters, and without markup of rich."""
    job = scenes.show(scenes.failed())
    job.job_id = "\x1b[2J[red]train[/red]\n"
    job.verdict.text = "\x1b]0;title\x07[link=x]click[/link]"
    job.verdict.culprit.exit.error.message = "one\x1b[31m\r\ntwo\x00"

    for command in ("status", "explain", "verdict"):
        text = transcripts.run(command, job, 80)
        assert "[red]train[/red]" in text
        assert all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("most", [1, 2, 7, 39, 40, 41])
def test_nodes_that_need_attention_are_shown_first(most: int) -> None:
    """As many rows as asked for, and a count of the others."""
    from rallypoint.cli.operator.views.nodes import choose_rows

    job = scenes.show(scenes.large())
    chosen = choose_rows(job, job.nodes, most)
    names = [str(row[0]) for row in chosen.rows]

    assert len(names) == min(most, 40)
    assert ["gpu-17", "gpu-31"][:most] == names[:2]
    assert names[2:] == sorted(names[2:], key=lambda name: int(name.removeprefix("gpu-")))
    assert bool(chosen.rest) == (most < 40)
