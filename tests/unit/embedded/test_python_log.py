"""Lines of an embedded agent: the log of the program around it decides about them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rallypoint.embedded.python_log import PythonLogger


@contextmanager
def unconfigured() -> Iterator[None]:
    """No handler anywhere, as in a program that has configured nothing."""
    ours, root = logging.getLogger("rallypoint"), logging.getLogger()
    before = ours.handlers[:], ours.level, root.handlers[:]
    ours.handlers, root.handlers = [], []
    ours.setLevel(logging.NOTSET)
    try:
        yield
    finally:
        ours.handlers, root.handlers = before[0], before[2]
        ours.setLevel(before[1])


def test_line_without_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a configuration, lines go to standard error."""
    monkeypatch.delenv("LOGLEVEL", raising=False)
    with unconfigured():
        logger = PythonLogger()
        logger.info("wait_began", why="1 of 2 nodes", count=3)
        logger.debug("unseen")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" rallypoint ")[2] for line in lines] == [
        "info wait_began why='1 of 2 nodes' count=3"
    ]


def test_level(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """LOGLEVEL chooses the level, as in torchrun."""
    monkeypatch.setenv("LOGLEVEL", "ERROR")
    with unconfigured():
        logger = PythonLogger()
        logger.warning("unseen")
        logger.error("seen")
    assert "unseen" not in (err := capsys.readouterr().err) and "error seen" in err


def test_old_torchrun(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It configures logging by a line of its log; waits are explained all the same."""
    monkeypatch.delenv("LOGLEVEL", raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed.run", raising=False)  # of another test
    with unconfigured():
        logging.info("Using nproc_per_node=2.")  # as torchrun does
        PythonLogger().info("unseen")
    with unconfigured():
        monkeypatch.setitem(sys.modules, "torch.distributed.run", sys)
        logging.info("Using nproc_per_node=2.")
        PythonLogger().info("wait_began", why="1 of 2 nodes")

    assert ["INFO:rallypoint:info wait_began why='1 of 2 nodes'"] == capsys.readouterr().err.split(
        "\n"
    )[:-1]


def test_handler_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    """A handler that the program adds later gets the lines, each once."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    with unconfigured():
        logger = PythonLogger()
        logging.root.addHandler(handler)
        logger.error("seen", n=1)
    assert records == ["error seen n=1"] and capsys.readouterr().err == ""
