"""Show what Rallypoint is for: training survives the loss of a worker, the coordinator and a node.

The demonstration starts a coordinator and two node agents with two workers each on this machine.
They train train_digits.py. Then

    round 1   both nodes train, until a worker is killed (SIGKILL);
    round 2   both nodes train again, one restart charged. The coordinator is killed and started
              again on the same journal; no worker notices. Then the agent of rank 0 is killed;
    round 3   the other node trains alone, no restart charged, until a new node joins;
    round 4   both nodes train to the end.

It waits for events: lines of the workers, and changes of the job that JobService sends. It ends
with a table of the rounds and exit code 0, or with one line about what went wrong and exit code 1.
In either case it leaves no process behind.

    python examples/demo.py
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from demo_processes import DemoFailed, Process, Processes
from demo_rounds import (
    ExpectedRound,
    check_rounds,
    check_stints,
    check_timelines,
    render_table,
    render_timelines,
)
from demo_stage import Stage, describe_end
from rallypoint.v1 import job_pb2, node_pb2, round_pb2

TIME_LIMIT_S = 300.0
"""Limit for everything except the cleanup."""
ACCURACY_MIN = 0.9
JOB_ID = "demo"
WORKERS_PER_NODE = 2
MAX_RESTARTS = 1
"""One is enough: the failed worker is charged, the lost node and the growth are not."""
EPOCHS = 10
STEPS_PER_CHECKPOINT = 5
STEPS_BEFORE_TROUBLE = 25
"""Slightly more than an epoch of 23 steps."""
STEPS_WITHOUT_COORDINATOR = 10
"""Trained before the coordinator is started again."""
STEP_TIME_S = 0.05
"""Least duration of a step, so that training lasts until a new node has joined."""
ENDING_LIMIT_S = 20.0

JOB_FLAGS = (
    "--nnodes", "1:2", "--nproc-per-node", str(WORKERS_PER_NODE),
    "--max-restarts", str(MAX_RESTARTS),
    "--last-call", "20", "--settle-time", "0.5", "--grow-after", "1", "--shutdown-timeout", "5",
)  # fmt: skip
"""The round with both nodes is sealed as soon as both are there; the last call is only its limit.
The other times are short, because this is a demonstration."""


@dataclass(slots=True)
class Play:
    """One demonstration.

    folder: holds the journal and the checkpoint.
    trouble_s: when each round became necessary, like `Stint.first_step_s`.
    remarks: what else happened in a round, for the table.
    """

    stage: Stage
    processes: Processes
    owner: asyncio.TaskGroup
    folder: Path
    agents: dict[str, Process] = field(default_factory=dict)
    trouble_s: list[float | None] = field(default_factory=lambda: [None])
    remarks: dict[int, str] = field(default_factory=dict)


async def start_coordinator(play: Play, name: str = "coordinator", port: str = "0") -> Process:
    command = [
        *("coordinator", "--host", "127.0.0.1", "--port", port, "--log-format", "json"),
        *("--state", f"sqlite:{play.folder / 'coordinator' / 'journal.sqlite'}"),
    ]
    coordinator = await play.processes.start(play.owner, name, command, None)
    await play.stage.until(lambda: play.stage.address is not None, "the coordinator listened")
    play.stage.tell(f"the coordinator listens on {play.stage.address}")
    return coordinator


async def start_agent(play: Play, name: str) -> None:
    assert play.stage.address is not None
    script = Path(__file__).with_name("train_digits.py")
    command = [
        *("node-agent", "--coordinator", play.stage.address, "--job-id", JOB_ID),
        *("--node-name", name, "--local-addr", "127.0.0.1", "--log-format", "json"),
        *(
            *JOB_FLAGS,
            str(script),
            "--checkpoint",
            str(play.folder / "checkpoint"),
            "--epochs",
            str(EPOCHS),
        ),
        *("--steps-per-checkpoint", str(STEPS_PER_CHECKPOINT), "--step-time", str(STEP_TIME_S)),
        *("--log-every", "1"),
    ]
    play.agents[name] = await play.processes.start(play.owner, name, command, 0)
    play.stage.tell(f"agent {name} started, pid {play.agents[name].child.pid}")


def find_node(job: job_pb2.Job, name: str) -> node_pb2.Node:
    """Return a node whose workers run.

    Raises:
        DemoFailed: when there is none of that name.
    """
    for node in job.nodes:
        if node.name == name and node.state == node_pb2.NODE_STATE_STARTED:
            return node
    raise DemoFailed(f"the JobService knows no running workers on {name}")


async def kill_worker(play: Play) -> None:
    """While round 1 trains, kill the worker with the highest rank."""
    stage = play.stage
    await stage.until(lambda: stage.is_training(1, STEPS_BEFORE_TROUBLE), "round 1 had trained")
    node = find_node(stage.job, stage.job.round.members[-1].node_name)
    worker = node.workers[-1]
    stage.tell(f">>> SIGKILL to the worker with rank {worker.rank}: {node.name}, pid {worker.pid}")
    play.trouble_s.append(stage.now_s())
    try:
        os.kill(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        raise DemoFailed(f"the JobService names pid {worker.pid}, which does not run") from None
    await stage.until(lambda: stage.is_training(2), "round 2 trained")


async def kill_coordinator(play: Play, coordinator: Process) -> Process:
    """While round 2 trains, kill the coordinator and start it again; return the new one.

    Raises:
        DemoFailed: when the workers or the round are not the same afterwards.
    """
    stage = play.stage
    before, killed_step = find_workers(stage.job), stage.stints[-1].last_step
    assert stage.address is not None
    port = stage.address.rpartition(":")[2]
    stage.tell(f">>> SIGKILL to the coordinator (pid {coordinator.child.pid})")
    killed_s = stage.now_s()
    stage.lose_coordinator()
    coordinator.kill()
    await coordinator.wait_end(ENDING_LIMIT_S)
    resume_step = killed_step + STEPS_WITHOUT_COORDINATOR
    await stage.until(
        lambda: stage.stints[-1].last_step >= resume_step, "training went on without it"
    )
    again = await start_coordinator(play, "coordinator-2", port)
    await stage.until(lambda: stage.joined == {*play.agents}, "both agents were back")
    back_s = stage.now_s()
    await stage.until(lambda: find_workers(stage.job) == before, "the same workers were back")
    steps = stage.stints[-1].last_step - killed_step
    stage.tell(f"both agents are back; steps meanwhile: {steps}; workers restarted: 0")
    play.remarks[2] = (
        f"coordinator killed, away {back_s - killed_s:.2f} s: 0 workers restarted, "
        f"{steps} steps trained"
    )
    return again


def find_workers(job: job_pb2.Job) -> tuple[int, int, tuple[int, ...]]:
    """Return the round, its restart count, and the pids of its workers."""
    header = job.round.header
    pids = (worker.pid for node in job.nodes for worker in node.workers)
    return header.number, header.restart_count, tuple(sorted(pids))


async def kill_agent(play: Play) -> str:
    """While round 2 trains, kill the agent of rank 0; return the name of the other one.

    Rank 0 hosts the workers' store and writes the checkpoints, so it is the worst to lose.
    """
    stage = play.stage
    await stage.until(lambda: stage.is_training(2, STEPS_BEFORE_TROUBLE), "round 2 had trained")
    first, other = (member.node_name for member in stage.job.round.members)
    agent = play.agents[first]
    stage.tell(f">>> SIGKILL to the agent {first} (pid {agent.child.pid}), which runs rank 0")
    killed_s = stage.now_s()
    play.trouble_s.append(killed_s)
    agent.kill()
    await agent.wait_end(ENDING_LIMIT_S)
    await play.processes.wait_gone(first)
    stage.tell(f"no process of {first} is left {stage.now_s() - killed_s:.2f} s after the kill")
    await stage.until(lambda: stage.is_training(3, STEPS_BEFORE_TROUBLE), "round 3 had trained")
    return other


async def replace_node(play: Play, name: str) -> None:
    """While round 3 trains, start another node; return when the job includes it and trains."""
    stage = play.stage
    await start_agent(play, name)
    number = stage.job.round.header.number

    def is_stopped() -> bool:
        round_is_over = stage.job.round.header.number != number
        return round_is_over or stage.job.phase != job_pb2.JOB_PHASE_RUNNING

    await stage.until(is_stopped, f"round {number} was stopped for {name}")
    play.trouble_s.append(stage.now_s())
    await stage.until(lambda: stage.is_training(4), "round 4 trained")


async def await_end(play: Play, coordinator: Process) -> None:
    """Wait until the job, all agents and the coordinator have ended and no process is left."""
    stage = play.stage
    await stage.until(lambda: stage.watch_has_ended, "the job ended")
    for agent in play.agents.values():
        await agent.wait_end(ENDING_LIMIT_S)
    coordinator.exit_code = 0
    coordinator.child.terminate()
    await coordinator.wait_end(ENDING_LIMIT_S)
    await play.processes.wait_gone()
    stage.tell("all agents and the coordinator have ended; no process is left")


async def perform(play: Play) -> None:
    """Run all rounds, then check and show what happened.

    Raises:
        DemoFailed: when anything differs from what is expected.
    """
    stage = play.stage
    coordinator = await start_coordinator(play)
    await start_agent(play, "node-a")
    await start_agent(play, "node-b")
    await stage.until(lambda: bool(stage.joined), "an agent reached the coordinator")
    play.owner.create_task(stage.watch(JOB_ID))
    await kill_worker(play)
    coordinator = await kill_coordinator(play, coordinator)
    survivor = await kill_agent(play)
    await replace_node(play, "node-c")
    await await_end(play, coordinator)
    check_and_show(play, survivor)


def check_and_show(play: Play, survivor: str) -> None:
    stage, job = play.stage, play.stage.job
    if job.outcome != job_pb2.OUTCOME_SUCCEEDED:
        raise DemoFailed(describe_end(job))
    both, grown, four = ("node-a", "node-b"), (survivor, "node-c"), 2 * WORKERS_PER_NODE
    expected = (
        ExpectedRound(round_pb2.ROUND_REASON_FIRST, both, four, 0),
        ExpectedRound(round_pb2.ROUND_REASON_WORKER_FAILED, both, four, 1),
        ExpectedRound(round_pb2.ROUND_REASON_NODE_LOST, (survivor,), WORKERS_PER_NODE, 1),
        ExpectedRound(round_pb2.ROUND_REASON_GROWTH, grown, four, 1),
    )
    check_rounds(job.history, expected)
    check_stints(stage.stints, job.history, STEPS_PER_CHECKPOINT)
    check_timelines(job.history, play.remarks)
    if stage.accuracy is None or stage.accuracy < ACCURACY_MIN:
        raise DemoFailed(f"the test accuracy is {stage.accuracy}, below {ACCURACY_MIN}")
    print(f"\n{render_table(job.history, stage.stints, play.trouble_s, play.remarks)}\n")
    print(
        "step:    of the checkpoint that training began from"
        "\nrun in:  from the failure as the coordinator saw it (or the stop to grow) until"
        "\n         all new workers ran, according to JobService"
        "\ntrain:   from the kill (or the stop) to the first training step; most of it is"
        "\n         the import of torch in every worker"
    )
    print(
        "\nHow each round came into being, in seconds since the failure (or the stop to grow;"
        "\nfor round 1 since the first agent came):"
    )
    print(f"\n{render_timelines(job.history)}\n")
    print(
        "detected: the coordinator learnt of the failure; told: it ordered the stop;"
        "\nstopped: the last worker had ended; swept: no process was left; sealed: ranks were"
        "\nfixed; started: all workers ran; imported, group and step as the workers report it"
    )
    print(f"\ntest accuracy {stage.accuracy:.3f}; took {stage.now_s():.1f} s")


async def perform_in_time(stage: Stage, processes: Processes, folder: Path) -> None:
    try:
        async with asyncio.timeout(TIME_LIMIT_S), asyncio.TaskGroup() as owner:
            await perform(Play(stage, processes, owner, folder))
    except TimeoutError:
        raise DemoFailed(f"{TIME_LIMIT_S:g} s went by before {stage.awaited}") from None
    except BaseExceptionGroup as group:
        failed, rest = group.split(DemoFailed)
        if failed is None or rest is not None:
            raise
        raise first_failure(failed) from group


def first_failure(group: BaseExceptionGroup[DemoFailed]) -> DemoFailed:
    found = group.exceptions[0]
    return found if isinstance(found, DemoFailed) else first_failure(found)


async def run() -> int:
    """Run the demonstration, end all its processes, and return the exit code."""
    stage = Stage()
    processes = Processes(stage.take_line, stage.take_log)
    loop = asyncio.get_running_loop()
    signals: list[int] = []
    with tempfile.TemporaryDirectory(prefix="rallypoint-demo-") as folder:
        # A signal cancels only this task, so it cannot interrupt the cleanup.
        performance = loop.create_task(perform_in_time(stage, processes, Path(folder)))

        def interrupt(signum: int) -> None:
            signals.append(signum)
            performance.cancel()

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, interrupt, signum)
        try:
            await performance
        except DemoFailed as error:
            show_logs(processes)
            print(f"demo: failed after {stage.now_s():.1f} s: {error}", file=sys.stderr)
            return 1
        except asyncio.CancelledError:
            if not signals:
                raise
            print(f"demo: ended by {signal.Signals(signals[0]).name}", file=sys.stderr)
            return 128 + signals[0]
        finally:
            await processes.close()
    return 0


def show_logs(processes: Processes) -> None:
    """Print the end of each process's log, to help find the cause."""
    for process in processes.all:
        for line in process.tail:
            print(f"    {process.name}: {line}", file=sys.stderr)


def main() -> int:
    """Parse the arguments, of which there are none, and run."""
    about = "Train through the loss of a worker, the coordinator and a node; takes about a minute."
    argparse.ArgumentParser(description=about).parse_args()
    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
