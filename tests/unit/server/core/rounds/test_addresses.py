"""Which address of the first node the workers of a round get."""

from __future__ import annotations

import pytest

from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.core.model.node import KnownAddresses
from rallypoint.server.core.model.round import RoundHeader
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.rounds.addresses import REACHED_MAX
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent

OFFICE, FABRIC, OTHER, FABRIC_6 = "10.0.0.1", "10.1.0.1", "10.2.0.1", "fd00::1"
SERVICE = "10.96.0.12"
"""No address of a host: what is behind it forwards the port of the coordinator alone."""
HOST = KnownAddresses(own=(OFFICE, FABRIC, FABRIC_6))
UNKNOWN = KnownAddresses()


def know(*addresses: str) -> KnownAddresses:
    """Return what a node on another host knows."""
    return KnownAddresses(of_coordinator=addresses)


def join(bench: Bench, name: str, known: KnownAddresses, address: str = OFFICE) -> FakeAgent:
    agent = bench.agent(name, address=address)
    agent.known_addresses = known
    assert agent.hello().refusal is None
    return agent


def run(*known: KnownAddresses) -> list[FakeAgent]:
    """Return nodes whose round was formed; all say that they have the same address."""
    bench = Bench(JobSpec(min_nodes=len(known), max_nodes=len(known), max_restarts=9))
    return [join(bench, f"n{number}", one) for number, one in enumerate(known)]


def order_of(agent: FakeAgent) -> DesiredRun:
    assert isinstance(agent.desired, DesiredRun)
    return agent.desired


def header_of(agent: FakeAgent) -> RoundHeader:
    return order_of(agent).header


@pytest.mark.parametrize(
    ("known", "address", "reached_at"),
    [
        # All agree on an address that the host has, and that is not its own guess.
        ((HOST, know(FABRIC), know(FABRIC)), FABRIC, (FABRIC,)),
        ((HOST, know(FABRIC, FABRIC_6), know(FABRIC)), FABRIC, (FABRIC, FABRIC_6)),
        ((HOST, know(FABRIC_6, FABRIC), know(FABRIC_6, FABRIC)), FABRIC, (FABRIC, FABRIC_6)),
        ((HOST, know(FABRIC_6), know(FABRIC_6)), FABRIC_6, (FABRIC_6,)),
        # Those on the coordinator's host have not tried any.
        ((HOST, HOST, know(FABRIC)), FABRIC, (FABRIC,)),
        ((HOST, HOST, HOST), OFFICE, ()),
        # They have reached its own.
        ((HOST, know(OFFICE), know(OFFICE)), OFFICE, ()),
        ((HOST, know(FABRIC_6, OFFICE), know(OFFICE)), OFFICE, ()),
        # They disagree.
        ((HOST, know(FABRIC), know(OFFICE)), OFFICE, (OFFICE, FABRIC)),
        ((HOST, know(FABRIC), know(FABRIC_6)), OFFICE, (FABRIC, FABRIC_6)),
        ((HOST, know(FABRIC), know(SERVICE)), OFFICE, (FABRIC, SERVICE)),
        # The host does not have it.
        ((HOST, know(SERVICE), know(SERVICE)), OFFICE, (SERVICE,)),
        ((KnownAddresses(own=(OFFICE,)), know(FABRIC), know(FABRIC)), OFFICE, (FABRIC,)),
        # A name with two addresses: either may be the one that was tried.
        (
            (KnownAddresses(own=(OFFICE, FABRIC, OTHER)), know(FABRIC, OTHER), know(FABRIC, OTHER)),
            OFFICE,
            (FABRIC, OTHER),
        ),
        # It is unknown how one has come: behind a relay, or an agent that does not say.
        ((HOST, know(FABRIC), UNKNOWN), OFFICE, (FABRIC,)),
        ((HOST, UNKNOWN, UNKNOWN), OFFICE, ()),
        # The first node is not on the coordinator's host.
        ((know(FABRIC), HOST, know(FABRIC)), OFFICE, ()),
        ((UNKNOWN, know(FABRIC), know(FABRIC)), OFFICE, ()),
    ],
)
def test_address_is_one_that_others_have_reached(
    known: tuple[KnownAddresses, ...], address: str, reached_at: tuple[str, ...]
) -> None:
    """If all of them have, and it is one of that host; else the node's own stays."""
    agents = run(*known)

    assert {address} == {header_of(agent).master_addr for agent in agents}
    assert [reached_at, (), ()] == [order_of(agent).reached_at for agent in agents]


def test_only_some_addresses_are_named() -> None:
    """Behind a translator of addresses, each node may have come to another one."""
    others = (know(f"10.3.0.{number}") for number in range(100, 130))

    reached_at = order_of(run(HOST, *others)[0]).reached_at
    assert tuple(f"10.3.0.{number}" for number in range(100, 100 + REACHED_MAX)) == reached_at


def test_running_round_keeps_its_address() -> None:
    """Nodes come back on other ways: the next round has what counts then."""
    agents = run(HOST, know(OFFICE), know(OFFICE))
    before = header_of(agents[0])
    agents[0].bench.obey()
    for agent in agents[1:]:
        agent.known_addresses = know(FABRIC)
        agent.hello(held=agent.held_round())
    kept = {header_of(agent) for agent in agents}
    agents[1].fail()
    agents[0].bench.obey()

    assert {before} == kept
    assert [FABRIC] * 3 == [header_of(agent).master_addr for agent in agents]


def test_node_that_comes_back_through_a_relay_confirms_nothing() -> None:
    """The addresses of the connection before no longer count."""
    first, second = run(HOST, know(FABRIC))
    bench = first.bench
    bench.obey()
    assert FABRIC == header_of(first).master_addr
    second.known_addresses = UNKNOWN
    second.hello(held=second.held_round())
    second.fail()
    bench.obey()

    assert OFFICE == header_of(first).master_addr


def test_spare_that_becomes_the_first_node_has_its_own_address() -> None:
    """The coordinator is not on its host, so no one is known to have reached that."""
    first, second = run(HOST, know(FABRIC))
    bench = first.bench
    bench.obey()
    assert FABRIC == header_of(first).master_addr
    spare = join(bench, "spare", know(FABRIC), OTHER)
    first.goodbye()
    bench.obey()

    assert 0 == spare.group_rank
    assert [OTHER] * 2 == [header_of(agent).master_addr for agent in (spare, second)]
    assert () == order_of(spare).reached_at
