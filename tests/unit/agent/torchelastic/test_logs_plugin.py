"""A plug-in for logs in its process: what it gets, what it may answer, how it fails."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rallypoint.agent.in_worker import LOGS_SPECS
from rallypoint.agent.output.destinations import Destinations
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin, LogsPluginError, PluginSpec
from support.machines.logs_specs import install
from support.processes.processes import Witness

ENVS = {0: {"RANK": "4", "SAME": "1"}, 1: {"RANK": "5", "SAME": "1"}}
GOOD = """
    def reify(self, envs):
        return LogsDest({rank: "" for rank in envs}, {rank: f"/logs/{rank}" for rank in envs})
"""

Begin = Callable[..., Awaitable[LogsPlugin]]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    begun: list[LogsPlugin] = []

    async def begin(body: str, name: str = "here", python: str = sys.executable) -> LogsPlugin:
        environment = {**os.environ, **install(tmp_path / "site", body)}
        spec = PluginSpec(name, python, "/base", {0: 3, 1: 0}, 1, (0, 7))
        begun.append(LogsPlugin(spec, environment))
        await begun[-1].begin()
        return begun[-1]

    yield begin
    for plugin in begun:
        await plugin.close()


@pytest.mark.parametrize(
    "hook",
    [
        "print('environment train is active')",
        "print({'number': 0})",
        "import os; os.close(1)",
        "import os; os.dup2(os.open(os.devnull, os.O_RDWR), 1)",
    ],
)
async def test_interpreter_that_prints(begin: Begin, tmp_path: Path, hook: str) -> None:
    """What its start does with standard output does not matter."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(hook)
    plugin = await begin(GOOD)

    assert (await plugin.ask(ENVS)).destinations.stdouts == {0: "", 1: ""}


async def test_what_a_plugin_gets_and_gives(begin: Begin) -> None:
    """A plug-in is made with torch's arguments; its answer has torch's shape, and variables."""
    plugin = await begin(
        """
    def reify(self, envs):
        print("not an answer")
        os.write(1, b"nor this")
        assert sys.stdin is None or not sys.stdin.read()
        assert self.redirects == {0: Std.ALL, 1: Std.NONE} and type(self.redirects[0]) is Std
        assert self.tee is Std.OUT and self.filter == {0, 7}, self.filter
        envs[0]["RANK"] = "9"
        envs[1]["TORCHELASTIC_ERROR_FILE"] = "/e/1"
        found = LogsDest({0: "", 1: "/o/1"}, {0: "/dev/null", 1: self.log_dir})
        found.tee_stdouts[1] = "/o/1"
        found.error_files.update({0: "/e/0", 1: "/e/1"})
        found.filtered_stdout = "/f"
        return found
"""
    )

    answer = await plugin.ask(ENVS)

    assert answer.destinations == Destinations(
        stdouts={0: "", 1: "/o/1"},
        stderrs={0: "/dev/null", 1: "/base"},
        tee_stdouts={1: "/o/1"},
        error_files={0: "/e/0", 1: "/e/1"},
        filtered_stdout="/f",
    )
    assert answer.environments == {0: {"RANK": "9"}, 1: {"TORCHELASTIC_ERROR_FILE": "/e/1"}}


async def test_plugin_is_made_once(begin: Begin) -> None:
    """The same object is asked in every round."""
    plugin = await begin(
        """
    asked = 0
    def reify(self, envs):
        self.asked += 1
        return LogsDest(*({rank: f"/{self.asked}" for rank in envs} for _ in "oe"))
"""
    )
    answers = [(await plugin.ask(ENVS)).destinations.stdouts[1] for _ in range(3)]

    assert answers == ["/1", "/2", "/3"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    def reify(self, envs): raise OSError(28, 'disk full')", "failed: OSError: .*full"),
        ("    def reify(self, envs): os._exit(3)", "has ended"),
        ("    def reify(self, envs): sys.exit(3)", "has ended"),
        ("    def reify(self, envs): return None", "did not assign the output of worker 0"),
        (
            "    def reify(self, envs): return LogsDest({0: '', 1: ''}, {0: ''})",
            "did not assign the output of worker 1",
        ),
        (
            "    def reify(self, envs): return LogsDest({'a': ''}, {})",
            "did not return a LogsDest",
        ),
        ("    def reify(self, envs): return LogsDest({0: object()}, {})", "failed: TypeError: "),
        ("    def __init__(self, **_): raise ValueError('no bucket')", "failed: ValueError: no b"),
        ("    def __init__(self): pass", "failed: TypeError: "),
        ("    import no_such_module", "failed: ModuleNotFoundError: No module named"),
    ],
)
async def test_plugin_that_fails(begin: Begin, body: str, words: str) -> None:
    """Every failure is one line that names the plug-in, and is raised again the next time."""
    plugin = await begin(body)
    for _ in range(2):
        with pytest.raises(
            LogsPluginError, match=f"the plug-in --logs-specs=here {words}"
        ) as raised:
            await plugin.ask(ENVS)
        assert len(str(raised.value).splitlines()) == 1


async def test_plugin_that_is_not_installed(begin: Begin) -> None:
    """The error of a plug-in that the workers' interpreter lacks lists the installed ones."""
    plugin = await begin(GOOD, name="there")

    with pytest.raises(LogsPluginError, match="not installed; installed: default, here"):
        await plugin.ask(ENVS)


async def test_interpreter_that_is_not_there(begin: Begin) -> None:
    """Without an interpreter the round is refused, and the agent keeps running."""
    plugin = await begin(GOOD, python="/no/python")

    with pytest.raises(LogsPluginError, match="could not be started with /no/python"):
        await plugin.ask(ENVS)


async def test_plugin_that_hangs(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for; at the end it is killed."""
    monkeypatch.setattr("rallypoint.agent.torchelastic.logs_plugin.ANSWER_S_MAX", 0.2)
    monkeypatch.setattr("rallypoint.agent.torchelastic.logs_plugin.END_S_MAX", 3_600)
    plugin = await begin("    def reify(self, envs): signal.pause()")

    with pytest.raises(LogsPluginError, match=r"did not answer in 0\.2 s"):
        await plugin.ask(ENVS)
    assert plugin._process is not None
    await plugin.close()
    assert plugin._process.returncode == -9


async def test_late_answer_is_passed_over(begin: Begin, tmp_path: Path) -> None:
    """The answer to a cancelled question is not taken for the next one's."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    plugin = await begin(
        f"""
    asked = 0
    def reify(self, envs):
        self.asked += 1
        if self.asked == 1:
            open({str(gate)!r}).read()
        return LogsDest(*({{rank: f"/{{self.asked}}" for rank in envs}} for _ in "oe"))
"""
    )
    first = asyncio.ensure_future(plugin.ask(ENVS))  # noqa: TID251  # cancelled below
    gate_fd = await asyncio.to_thread(os.open, gate, os.O_WRONLY)  # it has been asked
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    os.close(gate_fd)

    assert (await plugin.ask(ENVS)).destinations.stdouts[0] == "/2"


async def test_large_questions_and_answers(begin: Begin) -> None:
    """Environments and paths may exceed the size of a pipe."""
    plugin = await begin(GOOD)
    envs = {rank: {"RANK": str(rank), "LONG": "x" * 4_000} for rank in range(256)}

    assert len((await plugin.ask(envs)).destinations.stderrs) == 256


async def test_plugin_ends_with_the_agent(begin: Begin) -> None:
    """A plug-in ends by itself when its standard input is closed."""
    plugin = await begin(GOOD)
    await plugin.ask(ENVS)
    assert plugin._process is not None
    await plugin.close()

    assert plugin._process.returncode == 0


def test_plugin_dies_with_its_parent(tmp_path: Path, witness: Witness) -> None:
    """A killed agent leaves no plug-in behind, even one that does not read."""
    body = "    def __init__(self, **_): os.write(2, b'%d\\n' % os.getpid()); signal.pause()"
    options = {"log_dir": None, "redirects": 0, "tee": 0, "local_ranks_filter": None}
    program = (
        "import os, subprocess, sys\n"
        f"words = [{LOGS_SPECS!r}, str(os.getpid()), 'here', {json.dumps(options)!r}]\n"
        "subprocess.run([sys.executable, *words])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **install(tmp_path, body)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as parent:
        assert parent.stderr is not None
        witness.watch(int(parent.stderr.readline()))
        parent.kill()

        assert witness.await_deaths() == []
