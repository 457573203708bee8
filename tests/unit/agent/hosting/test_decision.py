"""Which host an endpoint names: one table."""

from __future__ import annotations

import pytest

from rallypoint.agent.hosting.decision import HostFacts, Hosting, names_this_host
from rallypoint.agent.hosting.facts import find_facts, is_host

HERE = {"name": "node1", "full_names": "node1.cluster", "addresses": "10.0.0.1"}


def facts(named: str = "", own: str = "", **here: str) -> HostFacts:
    about = {**HERE, **here}
    return HostFacts(
        name=about["name"],
        full_names=frozenset(about["full_names"].split()),
        addresses=frozenset(about["addresses"].split()),
        named=frozenset(named.split()),
        own=frozenset(own.split()),
    )


@pytest.mark.parametrize(
    ("host", "known", "is_named"),
    [
        ("localhost", facts(), True),
        ("127.0.0.1", facts(), True),
        ("127.5.0.1", facts(), True),
        ("::1", facts(), True),
        ("node1", facts(named="10.0.0.1"), True),
        ("node1", facts(), True),
        ("node1.cluster", facts(named="10.0.0.1"), True),
        ("node1.cluster", facts(), True),
        ("10.0.0.1", facts(named="10.0.0.1"), True),
        ("10.0.0.1", facts(), True),
        ("alias", facts(named="10.0.0.1"), True),
        ("alias", facts(named="10.9.0.1"), False),
        ("alias", facts(named="127.0.1.1"), True),
        ("second-nic", facts(named="10.1.0.1", own="10.1.0.1"), True),
        ("10.1.0.1", facts(named="10.1.0.1", own="10.1.0.1"), True),
        ("10.1.0.1", facts(named="10.1.0.1"), False),
        ("node2", facts(named="10.0.0.2"), False),
        ("node2", facts(), False),
        ("node2", facts(named="10.0.0.2", addresses="127.0.1.1"), False),
        ("node2", facts(named="10.0.0.2 10.0.0.1"), True),
        ("node2.cluster", facts(named="10.0.0.2"), False),
        ("node10", facts(named="10.0.0.10"), False),
    ],
)
def test_host_that_an_endpoint_names(host: str, known: HostFacts, is_named: bool) -> None:
    """Loopback, this host's names and addresses, and whatever resolves to one of them."""
    assert names_this_host(host, known) is is_named


@pytest.mark.parametrize("is_chosen", [True, False])
def test_command_line_wins(is_chosen: bool) -> None:
    """`is_host` and the rank of the node count before the name."""
    assert is_host(made(is_chosen, "203.0.113.9:1")) is is_chosen
    assert is_host(made(is_chosen, "localhost:1")) is is_chosen


def test_facts_of_this_host() -> None:
    """An address of this host is its own; one for documentation is not, nor is a bad name."""
    assert is_host(made(None, "localhost:1"))
    assert is_host(made(None, f"{find_facts('localhost').name}:1"))
    assert not is_host(made(None, "203.0.113.9:1"))
    assert find_facts("127.0.0.1").own == {"127.0.0.1"}
    assert find_facts("203.0.113.9").own == frozenset()
    assert find_facts("a..b").named == frozenset()


def test_parts_of_an_endpoint() -> None:
    """The host without brackets, and the port."""
    parts = made(None, "[fd00::1]:29400")

    assert (parts.host, parts.port) == ("fd00::1", 29_400)


def made(is_chosen: bool | None, endpoint: str) -> Hosting:
    return Hosting(endpoint=endpoint, is_chosen=is_chosen, unused_ms=1_000, window_ms=None)
