"""How nodes find each other: rendezvous of both styles, restarts of a group, and too few nodes."""

from __future__ import annotations

from support.processes.commands import Command
from support.processes.world import World
from support.scenarios.launch import PLACE, ROLE
from support.torchrun.launchers import RUN_LIMIT_S, Ran, scenario


@scenario("--nproc-per-node 2 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 tell.py")
def rendezvous_on_this_node(ran: Ran) -> None:
    """The recipe for several jobs on one machine."""
    assert ran.codes == [0]
    assert ran.values(*PLACE) == ["0 0 2 2 0 1", "1 1 2 2 0 1"]
    (run,) = set(ran.values("TORCHELASTIC_RUN_ID"))
    assert (run == "none") == ran.expected(
        torchrun=True, node_agent=False, why="jobs without a name must not meet"
    )


@scenario("--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id 'lr=0.1, wd (3)' -t 3 tell.py")
def id_of_any_characters(ran: Ran) -> None:
    """What a person has called a job is its name, whatever characters that has."""
    assert ran.codes == [0]
    assert ran.values("TORCHELASTIC_RUN_ID") == ["lr=0.1, wd (3)"]


@scenario("--nproc-per-node 2 --node-rank 0 --master-addr 127.0.0.1 --master-port @port tell.py")
def master_port(ran: Ran) -> None:
    """The store of the group is where the operator wants it."""
    assert ran.codes == [0]
    assert ran.values("MASTER_ADDR", "MASTER_PORT") == [f"127.0.0.1 {ran.port}"] * 2


@scenario("--nproc-per-node 2 allreduce.py")
def process_group(ran: Ran) -> None:
    """A plain script with a process group adds up what its ranks have.

    After a restart torchrun's ranks may meet what an earlier attempt has left in the store, and
    fail; so this is without one.
    """
    assert ran.codes == [0]
    assert ran.values("TOTAL") == ["3.0"] * 2


@scenario(
    "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:@port "
    "--rdzv-id twins --max-restarts 2 tell.py",
    nodes=("", ""),
)
def two_nodes(ran: Ran) -> None:
    """Two nodes with the same rendezvous are one group."""
    assert ran.codes == [0, 0]
    assert ran.values(*PLACE) == ["0 0 4 2 0 2", "1 1 4 2 0 2", "2 0 4 2 1 2", "3 1 4 2 1 2"]
    assert ran.values(*ROLE) == [f"default {rank} 4" for rank in range(4)]
    assert ran.values("TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS") == ["twins 2"] * 4
    assert len(set(ran.values("MASTER_ADDR", "MASTER_PORT"))) == 1


@scenario("--rdzv-backend static --rdzv-endpoint 127.0.0.1:@port tell.py")
def endpoint_of_the_static_style(ran: Ran) -> None:
    """In the static style, a single node meets no other at its endpoint."""
    assert ran.codes == [0]
    is_there = ran.values("MASTER_ADDR", "MASTER_PORT") == [f"127.0.0.1 {ran.port}"]
    assert is_there == ran.expected(
        torchrun=True,
        node_agent=False,
        why="an endpoint is where nodes meet; the store's port is --master-port, or free and new",
    )


@scenario("--local-addr 127.0.0.2 tell.py")
def local_address(ran: Ran) -> None:
    """The operator knows best by which address others reach this node."""
    assert ran.codes == [0]
    assert ran.values("MASTER_ADDR") == ["127.0.0.2"]


@scenario(
    "--nnodes=2 --master-addr 127.0.0.1 --master-port @port --tee 1 tell.py out=here",
    env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}${local_rank} of ${rank}: "},
    nodes=(
        "--node-rank 1 --nproc-per-node 1 --role judge",
        "--node-rank 0 --nproc-per-node 3 --role trainer",
    ),
)
def two_nodes_static(ran: Ran) -> None:
    """In the static style each node has the rank it was given, and may have workers and a role of
    its own; a prefix may show the rank among all."""
    assert ran.codes == [0, 0]
    assert ran.values(*PLACE) == ["0 0 4 3 0 2", "1 1 4 3 0 2", "2 2 4 3 0 2", "3 0 4 1 1 2"]
    assert ran.values(*ROLE) == ["trainer 0 3", "trainer 1 3", "trainer 2 3", "judge 0 1"]
    assert set(ran.values("MASTER_ADDR")) == {"127.0.0.1"}
    assert (set(ran.values("TORCHELASTIC_RUN_ID")) == {"none"}) == ran.expected(
        torchrun=True, node_agent=False, why="jobs without a name must not meet"
    )
    assert ran.nodes[0].out == ["judge0 of 3: here"]
    assert sorted(ran.nodes[1].out) == [f"trainer{rank} of {rank}: here" for rank in range(3)]


def _fail_once(world: World, commands: list[Command]) -> None:
    """Rank 0 of the first round fails; every worker of the second one succeeds."""
    world.mailbox.wait("started", 2, limit_s=RUN_LIMIT_S)
    first = sorted(world.mailbox.started(), key=lambda worker: worker.rank)
    first[0].tell("exit", "3")
    world.mailbox.wait("started", 4, limit_s=RUN_LIMIT_S)
    for worker in world.mailbox.started()[2:]:
        worker.tell("exit", "0")


@scenario(
    "--nnodes 1:2 --max-restarts 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:@port "
    "--rdzv-id phoenix tell.py obey",
    nodes=("", ""),
    drive=_fail_once,
)
def elastic_restart(ran: Ran) -> None:
    """One failure restarts the workers of both nodes, in a group of two again."""
    assert ran.codes == [0, 0]
    told = sorted(ran.told, key=lambda one: one.at_s)
    assert [sorted(one.rank for one in half) for half in (told[:2], told[2:])] == [[0, 1], [0, 1]]
    assert {one.env["WORLD_SIZE"] for one in told} == {"2"}
    assert sorted(one.env["TORCHELASTIC_RESTART_COUNT"] for one in told[2:]) == ran.expected(
        torchrun=["0", "1"],
        node_agent=["1", "1"],
        why="restarts are counted once for the job, not by each agent: all workers see one count",
    )


@scenario(
    "--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:@port --rdzv-id few "
    "--rdzv-conf last_call_timeout=1,join_timeout=60,keep_alive_interval=2 tell.py"
)
def fewer_nodes_than_asked_for(ran: Ran) -> None:
    """After the last call the group begins with as many nodes as there are."""
    assert ran.codes == [0]
    assert ran.values(*PLACE) == ["0 0 1 1 0 1"]


@scenario(
    "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:@port --rdzv-id lonely "
    "--rdzv-conf join_timeout=8 tell.py"
)
def too_few_nodes(ran: Ran) -> None:
    """Without enough nodes within the join timeout the launcher fails, and has started nothing."""
    assert ran.codes == [1]
    assert ran.told == []
    assert (
        ran.expected(
            torchrun="RendezvousTimeoutError",
            node_agent="only 1 node was ready",
            why="the report says who is missing, not where in the launcher it was noticed",
        )
        in ran.err
    )


@scenario("--rdzv-conf last_call_timeout=1,colour=blue tell.py")
def unknown_rendezvous_setting(ran: Ran) -> None:
    """An unknown setting ends no launch."""
    assert ran.codes == [0]
    assert ("colour" in ran.err) == ran.expected(torchrun=False, node_agent=True, why="the same")
