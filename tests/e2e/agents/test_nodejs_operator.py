"""The operator's script in Node.js (examples/clients/node) with real jobs."""

from __future__ import annotations

import json

import pytest

from support.languages.nodejs_client import PROMPT_SPEC, Client
from support.processes.jobs import is_started, node
from support.processes.world import NEW, World

HEAD = ["JOB", "RUN", "STATE", "ROUND", "NODES", "WORKERS", "RESTARTS", "WHY"]


def cells(line: str) -> list[str]:
    """Return the cells of a row, of which at most the last has spaces and "of" joins numbers."""
    return line.replace(" of ", "/").split(maxsplit=7)


def facts(text: str) -> dict[str, str]:
    """Return what the lines before the first empty one say."""
    first, _, _ = text.partition("\n\n")
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in first.splitlines()}


def test_lists_and_gets(world: World, client: Client) -> None:
    """Tables of jobs, of the facts of one job, and of its nodes."""
    python = world.agent("a", "--max-restarts=1")
    (worker,) = world.mailbox.workers(1)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    listed = client.operate(world, "list", "running").stdout.splitlines()
    failed = client.operate(world, "list", "failed").stdout
    shown = client.operate(world, "get", world.job_id).stdout

    assert cells(listed[0]) == HEAD
    assert [world.job_id, "1", "running", "1", "1", "1", "0/1"] in map(cells, listed)
    assert world.job_id not in failed
    assert facts(shown) == {
        "job": world.job_id,
        "run": "1",
        "state": "running",
        "round": "1",
        "size": "1 to 1 nodes",
        "restarts": "0 of 1",
    }
    assert shown.splitlines()[-1].split() == ["a", "started", "127.0.0.1", "0", str(worker.pid)]
    worker.tell("exit", "0")
    assert python.wait() == 0


@pytest.mark.long
def test_watches_a_job_until_it_ends(world: World, client: Client) -> None:
    """A row for every change; the last one has the outcome."""
    python = world.agent("a")
    (worker,) = world.mailbox.workers(1)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    watching = client.start(world, "watch", world.job_id)
    watching.wait_stdout_text("running")
    worker.tell("exit", "0")

    assert [python.wait(), watching.wait()] == [0, 0]
    head, *rows = map(cells, watching.stdout().splitlines())
    assert head == HEAD
    assert [row[2] for row in (rows[0], rows[-1])] == ["running", "succeeded"]


@pytest.mark.nightly
def test_restarts_resizes_and_cancels(world: World, client: Client) -> None:
    """A restart charges nothing; after a cancellation the agent stops its workers and exits 94."""
    nodejs = client.join(world, "b", nnodes="1")
    world.mailbox.workers(1)
    restarted = client.operate(world, "restart", world.job_id, "new data")
    (again,) = world.mailbox.workers(1, round=2)
    resized = client.operate(world, "resize", world.job_id, "1:3")
    spec = world.jobs.get(world.job_id).spec
    cancelled = client.operate(world, "cancel", world.job_id, "not needed")

    assert (restarted.returncode, again.restart_count, resized.returncode) == (0, 0, 0)
    assert (spec.min_nodes, spec.max_nodes) == (1, 3)
    assert cells(cancelled.stdout.splitlines()[1])[:3] == [world.job_id, "1", "cancelled"]
    assert nodejs.wait() == 94
    assert "agent: the job was cancelled: not needed" in nodejs.stderr()
    assert again.pid not in world.marked()


@pytest.mark.nightly
def test_creates_a_job_for_its_agents_and_deletes_it(world: World, client: Client) -> None:
    """An agent with another specification is refused; a deletion waits for nothing but the end."""
    spec = {**PROMPT_SPEC, "minNodes": 1, "maxNodes": 1, "maxRestarts": 2}
    created = client.operate(world, "create", world.job_id, json.dumps(spec))
    again = client.operate(world, "create", world.job_id, json.dumps(spec))
    other = client.join(world, "c", nnodes="1", spec={"maxRestarts": 1})
    other_code = other.wait()
    nodejs = client.join(world, "b", nnodes="1", spec={"maxRestarts": 2})
    (worker,) = world.mailbox.workers(1)
    too_early = client.operate(world, "delete", world.job_id)
    worker.tell("exit", "0")

    assert cells(created.stdout.splitlines()[1])[:3] == [world.job_id, "1", "forming"]
    assert (again.returncode, again.stderr.split()[-1]) == (1, "(JobExists)")
    assert (other_code, "--max-restarts is 2 there and 1 here" in other.stderr()) == (2, True)
    assert (too_early.returncode, too_early.stderr.split()[-1]) == (1, "(JobOpen)")
    assert nodejs.wait() == 0
    deleted = client.operate(world, "delete", world.job_id)
    gone = client.operate(world, "get", world.job_id)
    assert (deleted.returncode, deleted.stdout) == (0, f"{world.job_id} is deleted\n")
    assert gone.stderr.split()[-1] == "(UnknownJob)"


@pytest.mark.long
@pytest.mark.usefixtures("forgetful")
def test_watches_all_jobs_and_events_over_a_restart_of_the_coordinator(
    world: World, client: Client
) -> None:
    """Both connect again; what has happened before is shown once."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    python = world.agent("a", "--max-restarts=1")
    (worker,) = world.mailbox.workers(1)
    jobs = client.start(world, "watch")
    events = client.start(world, "events", world.job_id)
    jobs.wait_stdout_text("running")
    events.wait_stdout_text("round 1 started")
    coordinator.kill()
    world.coordinator(port)
    events.wait_stdout_text("adopted")
    worker.tell("exit", "0")
    jobs.wait_stdout_text("succeeded")
    events.wait_stdout_text("run 1 ended: succeeded")

    assert python.wait() == 0
    printed = events.stdout()
    assert [printed.count(text) for text in ("round 1 was sealed", "was adopted")] == [1, 1]
    assert "are lost" in events.stderr()  # the new coordinator does not have those of the old one
    sequences = [int(line.split()[0]) for line in printed.splitlines()]
    assert sequences == sorted(set(sequences))


@pytest.mark.nightly
def test_shows_the_coordinator(world: World, client: Client) -> None:
    """Its version, counts, and deadlines."""
    shown = facts(client.operate(world, "coordinator").stdout)

    assert {"version", "coordinatorId", "epoch", "uptime", "jobs", "nodes"} <= set(shown)
    assert (shown["helloWithin"], shown["reconnectWithin"]) == ("10s", "0.5s")


@pytest.mark.nightly
def test_cordons(world: World, client: Client) -> None:
    """It says so if no node of that name is connected."""
    python = world.agent("a")
    (worker,) = world.mailbox.workers(1)
    cordoned = client.operate(world, "cordon", world.job_id, "a", "bad memory").stdout
    absent = client.operate(world, "cordon", world.job_id, "c").stdout
    reasons = [health.reason for health in world.jobs.get(world.job_id).health]
    client.operate(world, "uncordon", world.job_id, "a")

    assert cordoned == "a is cordoned\n"
    assert absent == "c is cordoned; no node of that name is connected\n"
    assert reasons == ["bad memory", ""]
    assert not node(world.jobs.get(world.job_id), "a").health.cordoned
    worker.tell("exit", "0")
    assert python.wait() == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "exit_code", "text"),
    [
        (["get", "no-such-job"], 1, "there is no job 'no-such-job' (UnknownJob)"),
        (["drain", "no-such-job", "a", "soon"], 2, "soon: give me a time, as 60s"),
        (["resize", "no-such-job", "4"], 2, "4: give me the fewest and most nodes, as 2:4"),
        (["create", "job", "{"], 2, "the specification is no JSON: "),
        (["cancel"], 2, "usage: node operator.js cancel JOB [REASON]"),
        (["cancel", "a", "b", "c"], 2, "usage: node operator.js cancel JOB [REASON]"),
        (["--wrong"], 2, "Unknown option '--wrong'"),
        (
            ["stop", "no-such-job"],
            2,
            "no command stop; there are:\n  coordinator\n  list [",
        ),
    ],
)
def test_mistakes(
    world: World, client: Client, words: list[str], exit_code: int, text: str
) -> None:
    """One line says what is wrong: a refusal exits with 1, a wrong command line with 2."""
    ran = client.operate(world, *words)

    assert (ran.returncode, ran.stdout) == (exit_code, "")
    assert ran.stderr.startswith(text)
