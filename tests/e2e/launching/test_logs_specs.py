"""Plug-ins of torch's group `torchrun.logs_specs`: asked in every round, with a time limit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rallypoint.agent.torchelastic.logs_plugin import ANSWER_S_MAX
from support.machines.logs_specs import install
from support.processes.commands import NODE_AGENT
from support.processes.world import OBEDIENT, World

FILES = """
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        print("made", os.getpid())
        self.rounds = 0

    def reify(self, envs):
        self.rounds += 1
        base = os.path.join(self._root_log_dir, str(self.rounds))
        os.mkdir(base)
        paths = {
            name: {rank: os.path.join(base, f"{env['RANK']}.{name}") for rank, env in envs.items()}
            for name in ("out", "err", "error")
        }
        paths["out"][0] = ""
        for rank, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = paths["error"][rank]
            env["FROM_PLUGIN"] = env["RALLYPOINT_ROUND"]
        return LogsDest(paths["out"], paths["err"], {}, {1: paths["err"][1]}, paths["error"])
"""
SLOW = """
    def reify(self, envs):
        line = report("asked", round=envs[0]["RALLYPOINT_ROUND"])
        line.recv(100)
        return LogsDest({rank: "" for rank in envs}, {rank: "" for rank in envs})
"""


def test_real_plugin(world: World) -> None:
    """A class with real torch's base assigns the output of each round; it is made once."""
    env = install(world.folder / "site", FILES, with_torch=False)
    flags = ("--logs-specs=here", f"--log-dir={world.folder}/logs", "--max-restarts=1")
    agent = world.agent("a", *flags, nproc=2, env=env)
    for round in (1, 2):
        workers = world.mailbox.workers(2, round=round)
        for worker in workers:
            assert worker.env["FROM_PLUGIN"] == str(round)
            error_file = f"{world.folder}/logs/{round}/{worker.rank}.error"
            assert worker.env["TORCHELASTIC_ERROR_FILE"] == error_file
            worker.tell("print", f"out {round} {worker.rank}")
            worker.tell("say", f"err {round} {worker.rank}")
        workers[0].tell("exit", "0")
        if round == 1:
            workers[1].tell("record", "why it failed")
        workers[1].tell("exit", "3" if round == 1 else "0")

    assert agent.wait() == 0
    agent.drain()
    written = {
        str(path.relative_to(world.folder / "logs")): path.read_text()
        for path in sorted((world.folder / "logs").glob("*/*.*"))
        if path.suffix != ".error"
    }
    assert written == {
        f"{round}/{name}": text
        for round in (1, 2)
        for name, text in {
            "0.err": f"err {round} 0\n",
            "1.out": f"out {round} 1\n",
            "1.err": f"err {round} 1\n",
        }.items()
    }
    assert agent.stdout().splitlines() == ["out 1 0", "out 2 0"]
    said = agent.said()
    assert [line for line in said if line.startswith("[default")] == [
        "[default1]:err 1 1",
        "[default1]:err 2 1",
    ]
    assert len([line for line in said if line.startswith("made ")]) == 1
    (stopped,) = agent.events("round_stopped")
    assert "why it failed" in stopped["why"]


def test_default_is_ours(world: World) -> None:
    """`default` has the same effect as no flag, and does not import torch."""
    env = {"PYTHON_EXEC": "", **install(world.folder / "site", "", with_torch=True)}
    (world.folder / "site" / "torch" / "__init__.py").write_text("import os; os._exit(9)")
    agent = world.agent("a", "--logs-specs=default", f"--log-dir={world.folder}/logs", env=env)
    (worker,) = world.mailbox.workers(1)
    worker.tell("exit", "0")

    assert worker.env["TORCHELASTIC_ERROR_FILE"].startswith(f"{world.folder}/logs/")
    assert agent.wait() == 0


def test_plugin_that_fails_ends_the_job(world: World) -> None:
    """No worker starts, and the job ends with the plug-in's error."""
    env = install(world.folder / "site", "    def reify(self, envs): raise OSError(28, 'full')")
    agent = world.agent("a", "--logs-specs=here", env=env)

    assert agent.wait() == 1
    assert world.mailbox.started() == []
    reason = "the plug-in --logs-specs=here failed: OSError: [Errno 28] full"
    assert any(reason in line for line in agent.said())


@pytest.mark.parametrize(
    ("path", "name"),
    [("/x/\\0", "NAME"), ("/x/\\ud800", "NAME"), ("", "\\ud800"), ("", "\\0"), ("{fifo}", "NAME")],
)
def test_answers_that_no_system_can_take(world: World, path: str, name: str) -> None:
    """No worker starts and the job fails with a report; the agent keeps running."""
    fifo = world.folder / "fifo"
    os.mkfifo(fifo)
    body = f"""
    def reify(self, envs):
        for env in envs.values():
            env["{name}"] = "value"
        path = "{path.format(fifo=fifo)}"
        return LogsDest({{rank: path for rank in envs}}, {{rank: "" for rank in envs}})
"""
    agent = world.agent("a", "--logs-specs=here", nproc=2, env=install(world.folder / "site", body))

    assert agent.wait() == 1
    assert world.mailbox.started() == []
    assert any(line.startswith("node-agent: the job failed: ") for line in agent.said())
    assert not any("Traceback" in line for line in agent.said())


def test_agent_that_ends_while_the_plugin_is_asked(world: World) -> None:
    """No worker starts, the end does not wait, and the plug-in is not left behind."""
    env = install(world.folder / "site", SLOW)
    agent = world.agent("a", "--logs-specs=here", nproc=2, env=env)
    (asked,) = world.mailbox.wait("asked")
    assert asked.pid in world.marked()
    agent.signal(signal.SIGTERM)

    assert agent.wait(limit_s=ANSWER_S_MAX) == 128 + signal.SIGTERM
    assert world.left() == []
    assert world.mailbox.started() == []


def test_round_that_is_stopped_while_the_plugin_is_asked(world: World) -> None:
    """A peer fails: the round starts no worker here, and the plug-in is asked for the next."""
    env = install(world.folder / "site", SLOW)
    flags = ("--max-restarts=1", "--quarantine-after=0")
    slow = world.agent("a", *flags, "--logs-specs=here", nnodes="2", nproc=2, env=env)
    world.agent("b", *flags, nnodes="2")
    (asked,) = world.mailbox.wait("asked")
    (failing,) = world.mailbox.workers(1)
    failing.tell("exit", "3")
    (after,) = world.mailbox.workers(1, round=2, limit_s=ANSWER_S_MAX)
    for count in (1, 2):
        said = world.mailbox.wait("asked", count)[-1]
        assert (said.pid, said.fields["round"]) == (asked.pid, str(count))
        world.mailbox.answer(said, "continue")
    workers = world.mailbox.workers(3, round=2)

    assert [worker.node for worker in world.mailbox.started() if worker.round == 1] == ["b"]
    assert after.pid in [worker.pid for worker in workers]
    for worker in workers:
        worker.tell("exit", "0")
    assert slow.wait() == 0


def test_names_of_plugins(world: World) -> None:
    """An unknown name is refused with the installed ones; none of them is imported."""
    env = install(world.folder / "site", "", with_torch=False)
    Path(env["PYTHONPATH"], "here_logs.py").write_text("import os; os._exit(9)")
    argv = [NODE_AGENT, "--standalone", "--logs-specs", "nowhere", OBEDIENT]
    agent = world.start("agent", argv, env)

    assert agent.wait() == 2
    agent.drain()
    (line,) = agent.stderr().splitlines()
    text = "--logs-specs nowhere: not installed; known: default, here, rallypoint"
    assert line == f"node-agent: error: {text}"


@pytest.mark.parametrize("flag", ["--tee=g0:3", "--redirects=g1-7:1", "--ranks-filter=0"])
def test_plugin_knows_local_ranks_only(world: World, flag: str) -> None:
    """Flags for global ranks are refused together with a plug-in."""
    env = install(world.folder / "site", "", with_torch=False)
    argv = [NODE_AGENT, "--standalone", "--logs-specs=here", flag, OBEDIENT]
    agent = world.start("agent", argv, env)

    assert agent.wait() == 2
    agent.drain()
    assert "a plug-in chooses workers by local rank only" in agent.stderr()
