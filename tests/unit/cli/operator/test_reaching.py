"""What a command says about a connection that does not come about, in the words of every client."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.cli.operator.failures import NotReached
from rallypoint.cli.operator.reaching import check_reachable, find_problem
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.handshakes import Fault
from support.access.authority import Authority
from support.access.greeters import greeting
from support.machines.resolver import Resolver, install

LIMIT_S = 30.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def problem_at(port: int, access: Access) -> str:
    return find_problem(f"127.0.0.1:{port}", access, LIMIT_S)


def test_one_side_has_no_tls(authority: Authority) -> None:
    """Whichever it is."""
    trusted = Access(is_tls=True, ca_file=authority.ca)
    with greeting() as port:
        found = (problem_at(port, PLAIN), problem_at(port, trusted))
    with greeting(authority.issue("head", ["127.0.0.1"])) as port:
        secured = (problem_at(port, PLAIN), problem_at(port, trusted))

    assert found == ("", Fault.NO_TLS.value)
    assert secured[0].endswith(Fault.NEEDS_TLS.value)
    assert secured[1] == ""


def test_certificates_are_judged(authority: Authority, tmp_path: Path) -> None:
    """That of the server by its authority and its name, and that of the client if one is wanted."""
    other = Authority(tmp_path / "other", "other authority")
    pair = authority.issue("head", ["head"])
    trusted = Access(is_tls=True, ca_file=authority.ca, server_name="head")
    foreign = Access(is_tls=True, ca_file=other.ca, server_name="head")
    unnamed = Access(is_tls=True, ca_file=authority.ca, server_name="elsewhere")
    with greeting(pair) as port:
        found = [problem_at(port, one) for one in (trusted, foreign, unnamed)]
    with greeting(pair, client_ca=authority.ca) as port:
        anonymous = problem_at(port, trusted)

    assert found == ["", Fault.AUTHORITY.value, Fault.WRONG_NAME.value.format("elsewhere")]
    assert anonymous.endswith(Fault.CLIENT_WANTED.value)


def test_look_up_that_takes_long_is_noted_once(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is waited for; the connection joins the same look-up."""
    monkeypatch.setattr("rallypoint.cli.operator.reaching.SLOW_S", 0.01)
    resolver.hold("head")
    notes = list[str]()

    def note(line: str) -> None:
        notes.append(line)
        resolver.release("head")

    with pytest.raises(NotReached, match="head cannot be resolved"):
        check_reachable("head:7", PLAIN, LIMIT_S, note)

    text = "head is not resolved yet: the name server is slow or silent; see /etc/resolv.conf"
    assert [f"{text}; waiting for up to 10 s"] == notes


def test_look_up_of_a_name_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command has one attempt, so a slow name server has longer than a connection."""
    resolver = install(monkeypatch)
    resolver.hold("head")
    asked = find_problem("head:7", PLAIN, LIMIT_S, 0.01)
    resolver.release("head")

    assert asked.startswith("head is not resolved yet: the name server is slow or silent")
    assert find_problem("head:7", PLAIN, LIMIT_S, LIMIT_S).startswith("head cannot be resolved")
