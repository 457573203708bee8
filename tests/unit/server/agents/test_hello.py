"""A Hello on its way from the agent's core to the coordinator's."""

from __future__ import annotations

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import step
from rallypoint.agent.session.translate import fill_snapshot
from rallypoint.server.agents.hello import to_hello
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.core.messages.inputs import Hello
from rallypoint.server.core.model.node import NodeState, Program
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, round_pb2
from support.core.orders import run_order

READY = agent_pb2.Ready(master_port=20_000)
ORDER = agent_pb2.RunOrder(
    header=round_pb2.RoundHeader(
        number=1,
        run=1,
        world_size=2,
        group_world_size=1,
        master_addr="10.0.0.1",
        master_port=20_000,
    ),
    assignment=round_pb2.Assignment(
        group_rank=0, first_rank=0, local_world_size=2, first_role_rank=0, role_world_size=2
    ),
)


def to_input(hello: agent_pb2.Hello, address: str = "10.0.0.1") -> Hello:
    """Return what the coordinator makes of a Hello with these facts."""
    hello.protocol_version = 1
    hello.job_id, hello.node_name, hello.address = "job", "a", address
    hello.local_world_size = 2
    hello.spec.CopyFrom(job_pb2.JobSpec(min_nodes=1, max_nodes=1))
    return to_hello(
        agent_pb2.SessionRequest(session_id="0" * 32, connection=1, hello=hello), clock_ms=0
    )


def test_addresses_are_ip_addresses() -> None:
    """Each in its usual form. What is none is left out: it would become that of rank 0."""
    hello = agent_pb2.Hello(
        coordinator_addresses=["10.1.0.1", "node1", "", "10.1.0.1;x"],
        host_addresses=["10.0.0.1", "FD00:0::1", "fe80::1%eth0"],
        ready=agent_pb2.Ready(master_port=1),
    )

    known = to_input(hello).known_addresses
    assert ("10.1.0.1",) == known.of_coordinator
    assert ("10.0.0.1", "fd00::1", "fe80::1%eth0") == known.own


def test_failed_start_is_no_exit() -> None:
    """A worker that could not be started is a start failure of the held round, not an exit."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=None
    )
    said: list[inputs.Input] = [
        inputs.PortReserved(30_000),
        inputs.DesiredReceived(1, 1, run_order()),
        inputs.WorkerStarted(1, 0, 4_000),
        inputs.WorkerNotStarted(1, 1, "train: No such file or directory"),
    ]
    for one in said:
        state, _ = step(state, one, 1_000)
    hello = agent_pb2.Hello()
    fill_snapshot(hello, state, 2_000)

    held = to_input(hello).held
    assert held is not None
    assert [False, False] == [worker.HasField("exit") for worker in hello.held.workers]
    assert (NodeState.FAILED, (), "train: No such file or directory") == (
        held.state,
        held.exits,
        held.start_failure,
    )


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("", "must not be empty"),
        ("n" * 254, "is too long: at most 253 characters"),
        ("\x0010.0.0.9", "must be an IP address or a host name"),
        ("10.0.0.1\n", "must be an IP address or a host name"),
        ("10.0.0.1 ", "must be an IP address or a host name"),
        ("\x1b[31m", "must be an IP address or a host name"),
        ("-x", "must be an IP address or a host name"),
        ("::1%\n", "must be an IP address or a host name"),
    ],
)
def test_address_is_refused_with_its_problem(address: str, problem: str) -> None:
    """It becomes MASTER_ADDR of other nodes. What is missing is not called too long."""
    with pytest.raises(InvalidMessage) as caught:
        to_input(agent_pb2.Hello(ready=READY), address)

    assert ("hello.address", problem) == (caught.value.path, caught.value.problem)


def test_state_that_no_held_round_has_is_refused() -> None:
    """A node that holds a round is not ready."""
    held = agent_pb2.HeldRound(state=node_pb2.NODE_STATE_READY, order=ORDER)
    with pytest.raises(InvalidMessage) as caught:
        to_input(agent_pb2.Hello(held=held))

    assert ("hello.held.state", "is not a valid state for a held round") == (
        caught.value.path,
        caught.value.problem,
    )


def test_program_is_bounded_and_shared() -> None:
    """Whatever an agent sends becomes a short line; nodes with equal programs share one."""
    sent = agent_pb2.Program(
        name="train.py", arguments_digest="0a", command_line="\x1b[2J" + "x" * 9_999, user="a\n"
    )
    first, second = (
        to_input(agent_pb2.Hello(ready=READY, program=sent)).identity.program for _ in range(2)
    )

    assert first is second
    assert Program("train.py", "0a", "x" * 4_096, "a ") == first


def test_agent_that_says_nothing_about_its_program_has_none() -> None:
    """An agent of an earlier version is not one whose program has no name."""
    assert to_input(agent_pb2.Hello(ready=READY)).identity.program is None
