"""A call that never returns keeps no program from ending: nothing waits for its thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOTS = Path(__file__).parents[3] / "agent", Path(__file__).parents[3] / "elastic"
LOGS = """
import asyncio, sys, threading
from rallypoint.agent.torchelastic.logs_plugin import LogsPluginError
from rallypoint.elastic.node import logs_caller
logs_caller.ANSWER_S_MAX = 0.1
class Specs:
    def reify(self, envs):
        threading.Event().wait()
async def main():
    try:
        await logs_caller.new_caller_plugin(Specs()).ask({0: {}})
    except LogsPluginError as error:
        print(error)
asyncio.run(main())
"""
ACCESS = """
import asyncio, threading
from rallypoint.agent.session import connector
from rallypoint.wire.access import Access
from rallypoint.wire.connecting import Unreachable
connector.READ_S_MAX = 0.1
connector.Credentials = lambda access: threading.Event().wait()
async def main():
    try:
        await connector.Connector(Access(token_file="token")).open("127.0.0.1:1")
    except Unreachable as error:
        print(error)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [(LOGS, "Specs.reify took over 0.1 s"), (ACCESS, "cannot be read within 0.1 s")],
    ids=["logs", "access"],
)
def test_program_ends_beside_a_call_that_hangs(program: str, expected: str) -> None:
    """The program says why it gave up, and exits."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=20,
    )

    assert expected in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_agent_uses_no_thread_that_a_program_waits_for() -> None:
    """asyncio's own threads are joined at the end of the program; `FileThread` is a daemon."""
    sources = [path for root in ROOTS if root.exists() for path in sorted(root.rglob("*.py"))]
    found = [
        f"{path.name}: {line.strip()}"
        for path in sources
        for line in path.read_text().splitlines()
        if "to_thread(" in line or "run_in_executor(" in line
    ]

    assert sources
    assert found == []
