"""`rallypoint jobs`, `status`, `events`, `explain` and `verdict` on a real job, as a user does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time

import pytest

from support.processes.commands import RALLYPOINT
from support.processes.feed import LIMIT_S
from support.processes.jobs import is_started
from support.processes.terminal import CTRL_C, POLL_S, Terminal
from support.processes.world import World


def run(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return world.run(RALLYPOINT, *words, "-c", world.target)


def read(world: World, *words: str) -> str:
    """Return what a command prints that must succeed."""
    ended = run(world, *words)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


def open_terminal(world: World, *words: str, **variables: str) -> Terminal:
    env = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **variables}
    return Terminal([RALLYPOINT, *words, "-c", world.target], world.env(env), world.folder)


@pytest.mark.long
def test_a_job_is_read_from_a_shell(world: World) -> None:
    """While it waits, while it runs, and after it has failed."""
    job = world.job_id
    first = world.agent("a", nnodes="2", nproc=2)
    first.wait_event("coordinator_reached")
    waiting = read(world, "explain", job)
    world.agent("b", nnodes="2", nproc=2)
    world.jobs.wait(job, lambda found: is_started(found, 1))
    status = read(world, "status", job)
    rows = [line.split() for line in read(world, "jobs", job).splitlines()]
    world.mailbox.workers(4)[3].tell("exit", "3")
    assert first.wait() == 1
    verdict = read(world, "verdict", job)
    events = read(world, "events", job)

    assert f"{job} waits: 1 of 2 required nodes are ready" in waiting
    assert re.search(r"^a +0-1 +running +2/2 ", status, re.MULTILINE), status
    assert [row[:4] for row in rows[1:]] == [[job, "1", "running", "2/2"]]
    assert "ended by    exit code 3" in verdict
    assert [kind for kind in ("round sealed", "run closed") if kind not in events] == []


@pytest.mark.long
def test_events_are_followed(world: World) -> None:
    """Those that are kept come first, then each new one, until Ctrl-C; exit code 130."""
    job = world.job_id
    first = world.agent("a", nnodes="2")
    first.wait_event("coordinator_reached")
    words = ("events", "-f", job, "-o", "json", "--kind", "node-joined", "-c", world.target)
    following = world.start("events", [RALLYPOINT, *words])
    following.wait_stdout_text('"nodeName": "a"')
    world.agent("b", nnodes="2")
    following.wait_stdout_text('"nodeName": "b"')
    following.signal(signal.SIGINT)

    assert following.wait() == 130
    assert following.stderr() == ""
    lines = [json.loads(line) for line in following.stdout().splitlines()]
    assert [line["nodeJoined"]["nodeName"] for line in lines] == ["a", "b"]


def test_changes_are_lines_in_a_pipe(world: World) -> None:
    """`--watch` ends with the run."""
    agent = world.agent("a")
    agent.wait_event("coordinator_reached")
    watching = world.start("status", [RALLYPOINT, "status", "-w", world.job_id, "-c", world.target])
    watching.wait_stdout_text("running, round 1, 1 worker, 1 node")
    world.mailbox.workers(1)[0].tell("exit", "0")

    assert watching.wait() == 0
    assert "succeeded" in watching.stdout().splitlines()[-1]


@pytest.mark.long  # it waits for an outage
def test_live_view_follows_a_job(world: World) -> None:
    """It shows changes, says that no coordinator answers, continues, and leaves the last view."""
    coordinator = world.coordinator(0, f"--state=sqlite:{world.folder / 'journal.sqlite'}")
    port = world.target.rpartition(":")[2]
    agent = world.agent("a")
    agent.wait_event("coordinator_reached")
    with open_terminal(world, "status", "--watch", world.job_id) as terminal:
        at = terminal.wait_for("1/1")
        coordinator.kill()
        at = terminal.wait_for("no coordinator has answered at", at)
        world.coordinator(int(port), f"--state=sqlite:{world.folder / 'journal.sqlite'}")
        world.mailbox.workers(1)[0].tell("exit", "0")
        terminal.wait_for("succeeded", at)

        assert terminal.wait() == 0
        after = terminal.shown().rpartition("\x1b[?1049l")[2]  # leaves the alternate screen
        assert world.job_id in after and "succeeded" in after
    assert agent.wait() == 0


def test_live_view_follows_the_size_of_the_terminal(world: World) -> None:
    """No line is wider than the terminal is now, so none wraps."""
    world.agent("a").wait_event("coordinator_reached")
    env = world.env({"TERM": "xterm-256color"})
    argv = [RALLYPOINT, "status", "--watch", world.job_id, "-c", world.target]
    with Terminal(argv, env, world.folder, columns=120) as terminal:
        wait_width(terminal, range(71, 121))
        terminal.resize(70)
        wait_width(terminal, range(1, 71))
        terminal.type(CTRL_C)

        assert terminal.wait() == 130


def wait_width(terminal: Terminal, wanted: range) -> None:
    """Wait until the widest line of the last view that is whole has such a width."""
    ends_s = time.monotonic() + LIMIT_S
    while True:
        *_, view, _ = ("", *terminal.shown().split("\x1b[H"))
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", view).splitlines()
        if max(map(len, lines), default=0) in wanted:
            return
        assert time.monotonic() < ends_s, terminal.shown()[-2000:]
        time.sleep(POLL_S)


def test_live_view_ends_with_ctrl_c(world: World) -> None:
    """Exit code 130, without a traceback, and the cursor is back."""
    world.agent("a").wait_event("coordinator_reached")
    with open_terminal(world, "status", "--watch", world.job_id) as terminal:
        terminal.wait_for("1/1")
        terminal.type(CTRL_C)

        assert terminal.wait() == 130
        shown = terminal.shown()
    assert "\x1b[?1049l" in shown and shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("variables", "has_colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_want_them(
    world: World, variables: dict[str, str], has_colours: bool
) -> None:
    """Neither with NO_COLOR nor in a terminal that has none."""
    world.agent("a").wait_event("coordinator_reached")
    world.jobs.wait(world.job_id, lambda found: is_started(found, 1))
    with open_terminal(world, "status", world.job_id, **variables) as terminal:
        assert terminal.wait() == 0
        terminal.wait_for("1/1")
        shown = terminal.shown()

    assert bool(re.search(r"\x1b\[[0-9;]*m", shown)) == has_colours


def test_a_closed_pipe_ends_a_command(world: World) -> None:
    """As with `| head`: what follows for ever does not stay behind."""
    world.agent("a").wait_event("coordinator_reached")
    reading, writing = os.pipe()
    argv = [RALLYPOINT, "events", "-f", "-c", world.target]
    os.close(reading)
    process = subprocess.Popen(argv, env=world.env(), stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    try:
        assert process.wait(LIMIT_S) == -signal.SIGPIPE
    finally:
        process.kill()
        process.communicate()
