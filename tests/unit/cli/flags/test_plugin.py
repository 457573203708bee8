"""What a plug-in for logs is made with, as torchrun makes it from the same words."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.agent.torchelastic.logs_plugin import PluginSpec
from rallypoint.cli.flags.agent import output
from rallypoint.cli.flags.flag import Values
from rallypoint.cli.flags.parser import Parser

WORKERS = 4


def parse(*words: str) -> Values:
    return Parser("p", "", output.GROUPS).read(words, {})


@pytest.mark.parametrize("text", ["0", "1", "3", "0:3", "0:3,1:0,2:1,3:2"])
def test_streams_as_torch_reads_them(text: str) -> None:
    """Numbers for all workers or by local rank: the same as `Std.from_str` makes of them."""
    from torch.distributed.elastic.multiprocessing import Std

    expected: Any = Std.from_str(text)
    spec = output.parse_plugin(parse("--logs-specs=x", "-r", text, "-t", text), WORKERS)

    assert spec is not None
    assert (spec.redirects, spec.tee) == (expected, expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("1-2:3,2:1", {1: 3, 2: 1}), ("2-99:2", {2: 2, 3: 2}), ("7:1", {})]
)
def test_ranges_are_written_out(text: str, expected: dict[int, int]) -> None:
    """A choice that torch cannot express is given worker by worker; the last of several counts."""
    spec = output.parse_plugin(parse("--logs-specs=x", "-r", text), WORKERS)

    assert spec is not None
    assert (spec.redirects, spec.tee) == (expected, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", None), ("0,2", (0, 2)), ("1-2", (1, 2)), ("3-99", (3, 4)), ("8", (8,)), ("8-9", (8,))],
)
def test_filter(text: str, expected: tuple[int, ...] | None) -> None:
    """A filter that matches no worker here is kept: without it, every worker would be shown."""
    spec = output.parse_plugin(parse("--logs-specs=x", f"--local-ranks-filter={text}"), WORKERS)

    assert spec is not None
    assert spec.local_ranks == expected


@pytest.mark.parametrize("words", [(), ("--logs-specs=default",)])
def test_without_a_plugin(words: tuple[str, ...]) -> None:
    """torch's default is ours."""
    assert output.parse_plugin(parse(*words), WORKERS) is None


def test_interpreter_and_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made in the workers' interpreter, with the folder as it was given."""
    monkeypatch.setenv("PYTHON_EXEC", "/there/python")
    spec = output.parse_plugin(parse("--logs-specs=x", "--log-dir=logs"), WORKERS)

    assert spec == PluginSpec("x", "/there/python", "logs", 0, 0, None)
