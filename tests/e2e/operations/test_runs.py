"""The runs of a job: standalone, again under the same name, and after its end."""

import signal

from support.processes.world import World

UNUSED = "job_ended_without_this_node"


def test_standalone_restarts_and_fails_as_any_job(world: World) -> None:
    """The coordinator inside an agent restarts, blames and ends as any other."""
    agent = world.start("agent", world.standalone("--max-restarts=1", "--nproc-per-node=2"))
    for round in (1, 2):
        workers = world.mailbox.workers(2, round=round)
        workers[1].tell("exit", "6")

    assert [worker.restart_count for worker in workers] == [1, 1]
    assert agent.wait() == 1
    assert f"  exitcode  : 6 (pid: {workers[1].pid})" in agent.said()
    assert "  restarts  : 1, round 2" in agent.said()
    assert world.left() == []


def test_standalone_ends_on_a_signal(world: World) -> None:
    """The coordinator inside an agent ends with it."""
    agent = world.start("agent", world.standalone())
    world.mailbox.workers(1)
    agent.signal(signal.SIGTERM)

    assert agent.wait(limit_s=20) == 128 + signal.SIGTERM
    assert world.left() == []


def test_job_id_may_run_again(world: World) -> None:
    """A new agent after the end starts the next run; round numbers are not reused."""
    for number in (1, 2):
        agent = world.agent("a")
        (worker,) = world.mailbox.workers(1, round=number)
        worker.tell("exit", "0")

        assert worker.env["RALLYPOINT_RUN"] == str(number)
        assert agent.wait() == 0
        assert world.jobs.get(world.job_id).run == number


def test_launch_that_has_ended_is_not_run_again(world: World) -> None:
    """A restarted agent of an ended launch gets its outcome: exit code and verdict."""
    first = world.agent("a", "--launch-id=monday")
    (worker,) = world.mailbox.workers(1)
    worker.tell("exit", "3")
    assert first.wait() == 1
    again = world.agent("a", "--launch-id=monday")

    assert again.wait() == 1
    assert again.said() == first.said()
    assert len(world.mailbox.started()) == 1
    assert (len(first.events(UNUSED)), len(again.events(UNUSED))) == (0, 1)


def test_batch_script_may_start_agents_one_after_the_other(world: World) -> None:
    """Under Slurm with one job id, agents that run in sequence each run their command."""
    for number in (1, 2):
        agent = world.agent("a", env={"SLURM_JOB_ID": "7", "SLURM_TASK_PID": "1"})
        (worker,) = world.mailbox.workers(1, round=number)
        worker.tell("exit", "0")

        assert agent.wait() == 0
