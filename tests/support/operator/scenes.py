"""Jobs in every state that an operator may find them in, made by the core, with fixed times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from rallypoint.server.api.jobs.picture import job_message
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import ClockMeasured
from rallypoint.server.core.model.barrier import (
    BarrierKey,
    Expected,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.node import Program
from rallypoint.server.core.model.round import Milestone
from rallypoint.server.core.model.spec import HangAction, JobSpec
from rallypoint.v1 import job_pb2
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, worker_exit

JOB = "train"
STARTING_MS, STOPPING_MS = 340, 45
SPEC = JobSpec(
    min_nodes=2, max_nodes=3, max_restarts=9, join_timeout_ms=600_000, last_call_ms=5_000
)
STARTED_MS = 1_795_000_000_000
"""Unix time at which every coordinator here has started: 2026-11-18 11:06:40 UTC."""
PROGRAM = Program("train.py", command_line="train.py --epochs 3", user="ada")
Scene = Callable[[], Bench]


def show(bench: Bench) -> job_pb2.Job:
    """Return the job as the coordinator shows it."""
    bench.state.clocks.take(ClockMeasured(0, STARTED_MS))
    return job_message(bench.state, bench.job(JOB), bench.now_ms)


def join(bench: Bench, *numbers: int, **facts: Any) -> tuple[FakeAgent, ...]:
    """Return agents of the nodes gpu-N, with eight workers each unless `facts` differ."""
    facts = {"workers": 8, "program": PROGRAM, "job_id": JOB, **facts}
    return tuple(
        bench.join(f"gpu-{number}", address=f"10.0.0.{number}", **facts)[0] for number in numbers
    )


def running(
    spec: JobSpec = SPEC, nodes: int = 2, ms: int = 60_000
) -> tuple[Bench, list[FakeAgent]]:
    """Return a job whose first round has run for a while."""
    bench = Bench(spec)
    agents = [*join(bench, *range(1, nodes + 1))]
    if nodes < spec.max_nodes:
        bench.advance(spec.last_call_ms)
    bench.advance(STARTING_MS)
    bench.obey()
    bench.advance(ms)
    return bench, agents


def recover(bench: Bench, agents: Iterable[FakeAgent]) -> None:
    """Let workers take a moment to stop, and those of the next round to start."""
    bench.advance(STOPPING_MS)
    for agent in agents:
        agent.obey()
    bench.advance(STARTING_MS)
    bench.obey()


# --- Kinds of wait ------------------------------------------------------------------------------


def reattaching() -> Bench:
    bench = Bench(SPEC, window_ms=2_500)
    join(bench, 1)
    bench.advance(500)
    return bench


def too_few() -> Bench:
    bench = Bench(SPEC)
    join(bench, 1)
    bench.advance(20_000)
    return bench


def one_lost_and_one_left() -> Bench:
    bench, agents = running(nodes=3)
    agents[1].break_off()
    bench.advance(12_000)
    bench.obey()
    agents[2].goodbye("received SIGTERM")
    bench.obey()
    bench.advance(3_000)
    return bench


def kept_out() -> Bench:
    bench = Bench(SPEC)
    join(bench, 1, 2)
    cordon = inputs.Cordon(JobId(JOB), NodeName("gpu-2"), "broken fan")
    assert bench.take(cordon).refusal is None
    bench.advance(8_000)
    return bench


def last_call() -> Bench:
    bench = Bench(SPEC)
    join(bench, 1, 2)
    bench.advance(1_000)
    return bench


def returning() -> Bench:
    bench = Bench(SPEC)
    _, second = join(bench, 1, 2)
    second.break_off()
    bench.advance(200)
    return bench


def pausing() -> Bench:
    bench, agents = running(ms=1_000)
    for _ in range(3):
        agents[0].fail(worker_exit(said="RuntimeError: CUDA error: out of memory", ran_ms=900))
        bench.obey()
    bench.advance(250)
    return bench


def starting() -> Bench:
    bench = Bench(SPEC)
    first, *_ = join(bench, 1, 2, 3)
    bench.advance(10_000)
    first.start()
    return bench


def stopping() -> Bench:
    bench, agents = running()
    agents[0].fail(worker_exit(said="ValueError: loss is nan"))
    agents[0].obey()
    bench.advance(7_000)
    return bench


def growing() -> Bench:
    bench, _ = running()
    join(bench, 3)
    bench.advance(2_000)
    return bench


def farewell() -> Bench:
    bench, agents = running()
    for agent in agents:
        agent.exit(*(worker_exit(0, local_rank=rank) for rank in range(8)))
        agent.succeed()
    agents[0].goodbye()
    return bench


def fenced() -> Bench:
    bench, agents = running(replace(SPEC, grow=False, fence_after_ms=20_000), nodes=3)
    agents[2].break_off()
    bench.advance(1_000)
    bench.obey(agents[0], agents[1])
    return bench


def draining() -> Bench:
    bench, _ = running(nodes=3)
    drain = inputs.DrainNode(JobId(JOB), NodeName("gpu-3"), 60_000, "kernel update")
    assert bench.take(drain).refusal is None
    bench.advance(15_000)
    return bench


def network_suspected() -> Bench:
    bench, agents = running(replace(SPEC, max_nodes=4), nodes=4)
    for agent in agents[:3]:
        agent.break_off()
    bench.advance(600)
    return bench


def at_barrier() -> Bench:
    bench, _ = running()
    claim = claim_of(bench)
    key = BarrierKey(JobId(JOB), claim.run, claim.round, "after-load")
    for rank in (*range(9), *range(10, 16)):
        who = Participant(ParticipantKind.RANK, rank, "")
        everyone = Expected(0, all_of=ParticipantKind.RANK)
        came = inputs.Arrive(claim, key, who, everyone, timeout_ms=600_000, request_id=f"r{rank}")
        assert bench.take(came).refusal is None
    bench.advance(18_000)
    return bench


def outage() -> Bench:
    """Return a job of 40 nodes that have all lost their connection, one of them while it drains."""
    bench, agents = running(replace(SPEC, min_nodes=40, max_nodes=40), nodes=40, ms=30_000)
    drain = inputs.DrainNode(JobId(JOB), NodeName("gpu-17"), 60_000, "kernel update")
    assert bench.take(drain).refusal is None
    for number in (18, *range(18), *range(19, 40)):
        agents[number].break_off()
    bench.advance(4_000)
    return bench


def after_the_outage() -> Bench:
    bench = outage()
    bench.advance(38_000)
    return bench


def mute() -> Bench:
    """Return a job with two silent nodes, whose connections are still open."""
    bench, agents = running(replace(SPEC, max_nodes=9), nodes=9)
    agents[0].beats = agents[4].beats = False
    bench.advance(4_000)
    return bench


def blocked() -> Bench:
    bench, agents = running()
    agents[0].fail(worker_exit(signal=9))
    bench.obey(agents[1])
    agents[0].block()
    bench.advance(9_000)
    return bench


def hindered() -> Bench:
    bench, agents = running()
    agents[1].fail(worker_exit(signal=9))
    bench.obey(agents[1])
    agents[0].block("its helper process 4000 does not answer")
    bench.advance(9_000)
    return bench


def unprepared() -> Bench:
    bench, agents = running()
    agents[0].block("it cannot make the files of its workers: [Errno 28] No space left on device")
    bench.obey(agents[1])
    bench.advance(9_000)
    return bench


def nothing() -> Bench:
    bench, _ = running()
    return bench


def stuck() -> Bench:
    """Return a job whose workers hang in a way that only the age of the last step shows."""
    bench, _ = running()
    for step in (47, 48, 49):
        assert bench.take(inputs.Progressed(claim_of(bench), step)).refusal is None
        bench.advance(1_200)
    bench.advance(720_000)
    return bench


def suspected(spec: JobSpec = SPEC) -> Bench:
    """Return a job whose nodes have all reported that their workers stand still."""
    bench, agents = running(spec)
    bench.advance(spec.hang_after_ms)
    number = bench.rounds(JOB)[-1].number
    for agent in agents:
        agent.report(lambda sender: inputs.Progress(sender, number, spec.hang_after_ms))
    bench.advance(1_000)
    return bench


def hanging(spec: JobSpec = SPEC) -> Bench:
    """Return the same job, with the evidence of that."""
    bench = suspected(spec)
    text = (
        "rank 11 has not entered all_reduce number 6 of the default group, in which 15 ranks wait; "
        "it is in train.py:7 load_batch"
    )
    bench.take(inputs.Examined(JobId(JOB), bench.rounds(JOB)[-1].number, 11, text, True))
    bench.advance(11_000)
    return bench


def hung() -> Bench:
    """Return a job that was restarted because of that."""
    bench = hanging(replace(SPEC, hang_action=HangAction.RESTART))
    bench.obey()
    return bench


def succeeded() -> Bench:
    bench, agents = running()
    for agent in agents:
        agent.exit(*(worker_exit(0, local_rank=rank) for rank in range(8)))
        agent.succeed()
    for agent in agents:
        agent.goodbye()
    return bench


def lost_and_succeeded() -> Bench:
    """Return a job that has lost a node, with workers of others, and has succeeded without it."""
    bench, agents = running(nodes=3)
    lost = agents.pop(1)
    lost.break_off()
    for agent in agents:
        agent.fail(worker_exit(said="ConnectionResetError: Connection reset by peer"))
    bench.advance(500)
    recover(bench, agents)
    for agent in agents:
        agent.exit(*(worker_exit(0, local_rank=rank) for rank in range(8)))
        agent.succeed()
    for agent in agents:
        agent.goodbye()
    return bench


def failed() -> Bench:
    bench, agents = running(replace(SPEC, max_restarts=0))
    agents[1].fail(worker_exit(local_rank=3, said="ValueError: loss is nan"))
    agents[0].fail(worker_exit(said="ConnectionResetError: Connection reset by peer"))
    bench.obey()
    for agent in agents:
        agent.goodbye()
    return bench


WAITS: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        *(reattaching, too_few, one_lost_and_one_left, kept_out, last_call, returning, pausing),
        *(starting, stopping, growing, farewell, fenced, draining, network_suspected, blocked),
        *(hindered, unprepared, at_barrier, stuck, outage, after_the_outage, mute),
        *(suspected, hanging),
        *(nothing, succeeded, lost_and_succeeded, failed),
    )
}
"""For `rallypoint explain`."""


# --- Whole jobs ---------------------------------------------------------------------------------


def recovered() -> Bench:
    """Return a job that has lost a node and a worker, and runs with a spare left."""
    bench, agents = running(nodes=3, ms=90_000)
    agents += join(bench, 4)
    agents[1].fail(worker_exit(local_rank=3, said="ValueError: loss is nan"))
    recover(bench, agents)
    bench.advance(3_600_000)
    agents.pop(2).break_off()
    bench.advance(500)
    recover(bench, agents)
    train(bench, agents)
    bench.advance(720_630)
    join(bench, 5)
    bench.advance(1_000)
    return bench


def claim_of(bench: Bench) -> inputs.Claim:
    """Return what the token of a worker of the round says."""
    header = bench.rounds(JOB)[-1]
    return inputs.Claim(JobId(JOB), header.run, header.number, "token", is_signed=True)


def train(bench: Bench, agents: Iterable[FakeAgent]) -> None:
    """Let the workers of the round say how they come to their first step."""
    claim = claim_of(bench)
    for milestone, ms in ((Milestone.IMPORTED, 3_100), (Milestone.PROCESS_GROUP, 420)):
        bench.advance(ms)
        for agent in agents:
            agent.reach(milestone)
    bench.advance(850)
    assert bench.take(inputs.Progressed(claim, 4_100)).refusal is None


def large() -> Bench:
    """Return a job of 40 nodes, of which one drains and one is disconnected."""
    bench, agents = running(replace(SPEC, min_nodes=40, max_nodes=40), nodes=40, ms=30_000)
    drain = inputs.DrainNode(JobId(JOB), NodeName("gpu-17"), 60_000, "kernel update")
    assert bench.take(drain).refusal is None
    agents[30].break_off()
    return bench


JOBS: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        recovered,
        draining,
        too_few,
        lost_and_succeeded,
        failed,
        large,
        at_barrier,
        stuck,
        hanging,
        outage,
        after_the_outage,
    )
}
"""For `rallypoint status`."""
FAILURES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        failed,
        pausing,
        one_lost_and_one_left,
        after_the_outage,
        lost_and_succeeded,
        hung,
        nothing,
    )
}
"""For `rallypoint verdict`."""
