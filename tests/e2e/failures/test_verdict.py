"""After a failure every agent knows what failed first, where and how."""

import time

from rallypoint.v1 import job_pb2, verdict_pb2
from support.processes.world import OBEDIENT, WORKERS, World

LINGERING = (str(WORKERS / "lingering.py"),)


def test_every_agent_prints_what_failed_first(world: World) -> None:
    """Every node prints the first failure, its place and its last lines."""
    agents = [world.agent(name, nnodes="2", nproc=2) for name in ("a", "b")]
    workers = world.mailbox.workers(4)
    workers[3].tell("say", "loss is nan")
    workers[3].tell("exit", "3")

    assert [agent.wait() for agent in agents] == [1, 1]
    for agent in agents:
        report = agent.stderr()
        for line in (
            f"{OBEDIENT} FAILED",
            "Root Cause (first observed failure):",
            "  node      : b",
            "  rank      : 3 (local_rank: 1)",
            f"  exitcode  : 3 (pid: {workers[3].pid})",
            "  end of standard error:",
            "    loss is nan",
            "  restarts  : 0, round 1",
        ):
            assert line in report.splitlines()
    job = world.jobs.get(world.job_id)
    for agent in agents:
        assert agent.said()[-1] == f"node-agent: the job failed: {job.verdict.text}"
    culprit = job.verdict.culprit
    assert job.outcome == job_pb2.OUTCOME_FAILED
    assert job.verdict.cause == verdict_pb2.VERDICT_CAUSE_WORKER_FAILED
    assert (culprit.node_name, culprit.rank, culprit.local_rank) == ("b", 3, 1)
    assert (culprit.exit.exit_code, culprit.exit.stderr_tail) == (3, "loss is nan\n")
    assert job.verdict.text.endswith(": loss is nan; no restarts are left")


def test_record_of_torch_reaches_the_verdict(world: World) -> None:
    """An exception inside torch's @record is reported with message and traceback."""
    agent = world.agent("a", script=[str(WORKERS / "recorded.py")])

    assert agent.wait() == 1
    exit = world.jobs.get(world.job_id).verdict.culprit.exit
    assert exit.error.message == "ValueError: the recorded reason"
    assert 'raise ValueError("the recorded reason")' in exit.error.traceback
    assert exit.error.HasField("age_at_exit")
    assert "ValueError: the recorded reason" in agent.stderr()


def test_worker_that_records_its_error_and_hangs_is_the_root_cause(world: World) -> None:
    """It fails when it records its error: the round stops long before its clean-up has ended."""
    flags = ("--max-restarts=1", "--shutdown-timeout=10")
    agents = [
        world.agent(name, *flags, nnodes="2", nproc=2, script=LINGERING) for name in ("a", "b")
    ]
    workers = world.mailbox.workers(4)
    for worker in workers[:2]:
        worker.tell("TERM", "ignore")
        world.mailbox.wait("ready", pid=worker.pid)
    hung = workers[3]
    hung.tell("record", "loss is nan")
    hung.tell("exit", "1")
    began_s = time.monotonic()
    job = world.jobs.wait(world.job_id, lambda job: job.verdict.HasField("culprit"))
    assert (job.verdict.culprit.rank, job.verdict.culprit.exit.error.message) == (3, "loss is nan")
    assert not job.verdict.culprit.exit.HasField("exit_code")
    assert "error recorded, still running" in job.verdict.text
    world.mailbox.wait("signalled", 2)
    workers[0].tell("raise", "no answer")
    workers[1].tell("exit", "0")
    second = world.mailbox.workers(4, round=2)

    assert time.monotonic() - began_s < 60
    assert [worker.restart_count for worker in second] == [1] * 4
    verdict = world.jobs.get(world.job_id).verdict
    assert (verdict.culprit.rank, verdict.culprit.exit.error.message) == (3, "loss is nan")
    assert verdict.consequence == verdict_pb2.VERDICT_CONSEQUENCE_RESTARTED
    for worker in second:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]


def test_report_names_the_worker_that_recorded_first(world: World) -> None:
    """Every node's report has torchrun's numbered line above the first recorded failure, although a
    worker on the other node ended first."""
    agents = [world.agent(name, nnodes="2", script=LINGERING) for name in ("a", "b")]
    first, second = world.mailbox.workers(2)
    first.tell("record", "loss is nan")
    first.tell("exit", "1")
    world.jobs.wait(world.job_id, lambda job: job.verdict.HasField("culprit"))
    second.tell("exit", "7")

    assert [agent.wait() for agent in agents] == [1, 1]
    for agent in agents:
        lines = agent.stderr().splitlines()
        root = lines[lines.index("Root Cause (first observed failure):") :]
        assert root[1].startswith("[") and root[1].endswith("]:")
        assert "  rank      : 0 (local_rank: 0)" in root
        assert "  traceback : loss is nan" in root
        assert f"  exitcode  : 1 (pid: {first.pid})" in root
