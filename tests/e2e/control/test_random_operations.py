"""Operators cancel, restart, resize and delete jobs at random moments, over connections that break.

Every request is sent until it is answered, and once more some time later. Whatever the moment, no
worker has a wrong rank, nothing counts twice, and no process is left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from rallypoint.client import Client
from rallypoint.client.attempts import Call
from rallypoint.client.calls import operations
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.wire.errors import unpack_detail
from support.machines.proxy import Proxy
from support.processes.commands import Command
from support.processes.feed import LIMIT_S
from support.processes.jobs import is_started
from support.processes.mailbox import Worker
from support.processes.world import World
from support.tries.commit import choose_seeds

SHORT, LONG = choose_seeds("operators", 1), choose_seeds("more operators", 3, after=1)
NIGHTLY = choose_seeds("still more operators", 9, after=2)
NODES = ("a", "b", "c")
OPERATIONS = 7
"""Restarts and changes of the size before the job is cancelled."""
CUT_S_MAX = 0.15
"""Longest time between a request and the end of its connection."""
CUT_SHARE, REPEAT_SHARE = 0.5, 0.6
CANCELLED = 94
"""Exit code of an agent whose run was cancelled."""


class Operator:
    """Sends requests over a connection that breaks, and remembers them."""

    def __init__(self, world: World, rng: Random, proxy: Proxy) -> None:
        self.world = world
        self.rng = rng
        self.proxy = proxy
        self.client = Client(proxy.address)
        self.sent: list[tuple[str, Message]] = []
        """Names of the RPCs that were answered, and their requests."""
        self.wanted = service_pb2.JobUpdate(min_nodes=1, max_nodes=3)
        """The specification of the run, as far as it was changed."""
        self._stub = service_grpc.JobServiceStub(world.jobs.channel)
        self._pool = ThreadPoolExecutor(1)

    def close(self) -> None:
        """End the calls, of which none is open."""
        self._pool.shutdown()
        self.client.close()

    def do(self, call: Call[Any, Any]) -> Any:
        """Send a request until it is answered; perhaps its first answers are lost."""
        is_cut = self.rng.random() < CUT_SHARE
        if is_cut and self.rng.random() < 0.5:
            self.proxy.withhold_answers()
        answer = self._pool.submit(self.client._transport.run, call, LIMIT_S)
        if is_cut:
            wait([answer], self.rng.uniform(0, CUT_S_MAX))
            self.proxy.cut()
        found = answer.result(2 * LIMIT_S)
        self.sent.append((call.method.path.rpartition("/")[2], call.request))
        return found

    def repeat(self) -> None:
        """Send an earlier request again. It is answered, and changes nothing."""
        if self.sent and self.rng.random() < REPEAT_SHARE:
            name, request = self.rng.choice(self.sent)
            getattr(self._stub, name)(request, timeout=LIMIT_S)

    def act(self) -> None:
        """Restart or resize the job."""
        if self.rng.random() < 0.5:
            job = self.world.jobs.get(self.world.job_id)
            round = self.rng.choice((0, job.round.header.number))
            self.do(operations.restart_job(self.world.job_id, round, "new data"))
            return
        low = self.rng.randint(1, 2)
        update = service_pb2.JobUpdate(min_nodes=low, max_nodes=self.rng.randint(low, 3))
        if self.rng.random() < 0.3:
            update.max_restarts = self.rng.randint(0, 5)
        self.do(operations.update_job(self.world.job_id, update, 0))
        self.wanted.MergeFrom(update)

    def await_moment(self) -> None:
        """Let some of what the last request has caused happen, or nothing of it."""
        if self.rng.random() < 0.6:
            self.world.jobs.wait(self.world.job_id, self.rng.choice((is_running, is_complete)))


def is_running(job: job_pb2.Job) -> bool:
    return job.phase == job_pb2.JOB_PHASE_RUNNING


def is_complete(job: job_pb2.Job) -> bool:
    return is_running(job) and is_started(job, job.round.header.number)


@pytest.fixture
def proxies(world: World) -> Iterator[tuple[Proxy, Proxy]]:
    """Return the way of operators and that of one agent."""
    with Proxy(world.target) as of_operators, Proxy(world.target) as of_agent:
        yield of_operators, of_agent


@pytest.mark.parametrize(
    "seed",
    [
        *SHORT,
        *(pytest.param(seed, marks=pytest.mark.long) for seed in LONG),
        *(pytest.param(seed, marks=pytest.mark.nightly) for seed in NIGHTLY),
    ],
)
def test_operations_at_random_moments(
    world: World, proxies: tuple[Proxy, Proxy], seed: int
) -> None:
    """Twice in a row: the second job has the name of the first one, which was deleted."""
    rng = Random(seed)
    operator = Operator(world, rng, proxies[0])
    try:
        spec = run_job(operator, proxies[1], None)
        run_job(operator, proxies[1], spec)
    finally:
        operator.close()

    check_ranks(world.mailbox.started())
    others = set(world.marked())
    assert [] == world.left(spared=others - {worker.pid for worker in world.mailbox.started()})


def run_job(operator: Operator, of_agent: Proxy, spec: job_pb2.JobSpec | None) -> job_pb2.JobSpec:
    """Run a job from its beginning to its deletion; return its specification.

    Args:
        operator: who changes it.
        of_agent: way of one agent to the coordinator.
        spec: with which it is created before its agents come; None: by its first agent.
    """
    world, rng = operator.world, operator.rng
    if spec is not None:
        created = operator.do(operations.create_job(world.job_id, spec)).job
        assert (created.run, created.phase) == (2, job_pb2.JOB_PHASE_FORMING)
        operator.wanted = service_pb2.JobUpdate(min_nodes=1, max_nodes=3)
    agents = [start(world, name, of_agent) for name in NODES]
    first_round = 1 if spec is None else world.jobs.get(world.job_id).round.header.number + 1
    if spec is None:
        world.mailbox.wait("started", 1)  # of any round: the first one may have ended
    world.jobs.wait(world.job_id, lambda job: job.round.header.number >= first_round)
    spec = spec or world.jobs.get(world.job_id).spec
    for _ in range(OPERATIONS):
        operator.await_moment()
        operator.act()
        operator.repeat()
        if rng.random() < 0.3:
            of_agent.cut()
    shown = world.jobs.get(world.job_id).spec
    wanted = operator.wanted
    assert (shown.min_nodes, shown.max_nodes) == (wanted.min_nodes, wanted.max_nodes)
    end(operator, agents)
    return spec


def start(world: World, name: str, of_agent: Proxy) -> Command:
    target = of_agent.address if name == NODES[0] else world.target
    return world.agent(name, "--max-restarts=3", f"--coordinator={target}", nnodes="1:3")


def end(operator: Operator, agents: list[Command]) -> None:
    """Cancel the job, and delete it. No request brings it back."""
    world = operator.world
    # An agent that comes after the end would begin the next run.
    world.jobs.wait(world.job_id, lambda job: job.node_count == len(agents))
    operator.await_moment()
    cancelled = operator.do(operations.cancel_job(world.job_id, 0, "enough")).job
    operator.repeat()
    assert cancelled.outcome == job_pb2.OUTCOME_CANCELLED
    assert cancelled.restart_count == 0, "what operators request is charged to no one"
    assert [CANCELLED] * len(agents) == [agent.wait() for agent in agents]
    operator.do(operations.delete_job(world.job_id, 0))
    for name, request in operator.sent[-2:]:  # the job is gone: there is nothing to cancel
        code, detail = repeat_of_ended(world, name, request)
        assert (code, detail) in (
            (grpc.StatusCode.OK, None),
            (grpc.StatusCode.NOT_FOUND, details_pb2.UnknownJob(job_id=world.job_id)),
        )
        assert (code is grpc.StatusCode.OK) == (name == "DeleteJob")


def repeat_of_ended(world: World, name: str, request: Message) -> tuple[grpc.StatusCode, Any]:
    stub = service_grpc.JobServiceStub(world.jobs.channel)
    try:
        getattr(stub, name)(request, timeout=LIMIT_S)
    except grpc.RpcError as error:
        failed: Any = error
        return failed.code(), unpack_detail(failed.trailing_metadata())
    return grpc.StatusCode.OK, None


def check_ranks(started: list[Worker]) -> None:
    """Check that every round had each rank at most once, and one size everywhere.

    A round that was stopped early has some of its ranks. Numbers of rounds are never used again.
    """
    rounds: defaultdict[int, list[Worker]] = defaultdict(list)
    for worker in started:
        rounds[worker.round].append(worker)
    assert rounds
    for number, workers in rounds.items():
        sizes = {int(worker.env["WORLD_SIZE"]) for worker in workers}
        ranks = sorted(worker.rank for worker in workers)
        masters = {(worker.env["MASTER_ADDR"], worker.env["MASTER_PORT"]) for worker in workers}
        assert len(sizes) == len(masters) == 1, f"round {number} is two rounds"
        assert ranks == sorted(set(ranks)), f"round {number} has the ranks {ranks}"
        assert set(ranks) <= set(range(*sizes)), f"round {number} has the ranks {ranks}"
        assert {worker.restart_count for worker in workers} == {0}
