"""What `doctor` says about the way to the coordinator."""

from __future__ import annotations

import pytest

from rallypoint.cli.operator.doctor.findings import Level
from rallypoint.cli.operator.doctor.network import (
    Attempt,
    Endpoint,
    Listener,
    Lookup,
    Reach,
    check_connection,
    check_listener,
    check_name,
    is_exposed,
)
from rallypoint.cli.operator.reaching import Heard, Speech

HEAD = Endpoint("head", 50051)
OPEN = Attempt("10.0.0.1", Reach.OPEN, 0.002)


@pytest.mark.parametrize(
    ("lookup", "level", "text"),
    [
        (
            Lookup("head", ("10.0.0.1",), took_s=0.02),
            Level.OK,
            "head is 10.0.0.1, found in 20 ms",
        ),
        (Lookup("::1", ("::1",)), Level.OK, "an address"),
        (
            Lookup("a", tuple("123456")),
            Level.OK,
            "a is 1, 2, 3, 4 and 2 more, found in 1 ms",
        ),
        (
            Lookup("haed", error="haed cannot be resolved: is it spelled right?"),
            Level.PROBLEM,
            "haed cannot be resolved: is it spelled right?",
        ),
        (
            Lookup("head", took_s=5.0),
            Level.PROBLEM,
            "the look-up of 'head' has no answer after 5 seconds",
        ),
        (
            Lookup("head", ("10.0.0.1",), took_s=1.5),
            Level.WARNING,
            "head is 10.0.0.1, but the look-up takes 1.5 seconds",
        ),
    ],
)
def test_a_name_means_an_address_soon(lookup: Lookup, level: Level, text: str) -> None:
    """Unknown, no answer and slow are three things, each with advice."""
    finding = check_name(lookup)

    assert (finding.level, finding.text) == (level, text)
    assert bool(finding.advice) is (level is not Level.OK)


@pytest.mark.parametrize(
    ("attempts", "level", "text", "advice"),
    [
        ([OPEN], Level.OK, "10.0.0.1:50051 answers in 2 ms", ""),
        (
            [Attempt("::1", Reach.REFUSED), OPEN],
            Level.OK,
            "10.0.0.1:50051 answers in 2 ms; ::1 does not",
            "",
        ),
        (
            [Attempt("10.0.0.1", Reach.OPEN, 0.8)],
            Level.WARNING,
            "10.0.0.1:50051 answers in 800 ms",
            "check the load of the network: heartbeats and restarts take at least as long",
        ),
        (
            [Attempt("10.0.0.1", Reach.REFUSED)],
            Level.PROBLEM,
            "nothing listens on 10.0.0.1:50051",
            "check the port, or start one there: rallypoint coordinator --port 50051",
        ),
        (
            [Attempt("::1", Reach.UNREACHABLE, error="x"), Attempt("10.0.0.1", Reach.SILENT, 3.0)],
            Level.PROBLEM,
            "10.0.0.1:50051 does not answer within 3 seconds",
            "check that the host is up, and that no firewall drops TCP port 50051",
        ),
        (
            [Attempt("fd00::1", Reach.UNREACHABLE, error="No route to host")],
            Level.PROBLEM,
            "[fd00::1]:50051 cannot be reached: No route to host",
            "check the network of this host: ip route get fd00::1",
        ),
    ],
)
def test_one_open_address_is_enough(
    attempts: list[Attempt], level: Level, text: str, advice: str
) -> None:
    """Without one, the address whose answer says most is shown."""
    finding = check_connection(HEAD, attempts)

    assert (finding.level, finding.text, finding.advice) == (level, text, advice)


PYTHON = Listener("*", 12, "python3")


@pytest.mark.parametrize(
    ("heard", "listeners", "text"),
    [
        (
            Heard(Speech.HTTP1, "HTTP/1.1 400 Bad Request"),
            [PYTHON],
            "a web server listens on head:50051; coordinators speak HTTP/2; process python3 (12)",
        ),
        (
            Heard(Speech.OTHER, "SSH-2.0-OpenSSH_9.2"),
            [],
            "another program listens on head:50051; it sends 'SSH-2.0-OpenSSH_9.2'",
        ),
        (
            Heard(Speech.OTHER),
            [Listener("*")],
            "another program listens on head:50051; it closes the connection; process one of "
            "another user",
        ),
        (
            Heard(Speech.NOTHING),
            [PYTHON],
            "what listens on head:50051 sends nothing; process python3 (12)",
        ),
    ],
)
def test_another_program_on_the_port_is_named(
    heard: Heard, listeners: list[Listener], text: str
) -> None:
    """By what it sends, and by its process if it runs here."""
    (finding,) = check_listener(HEAD, heard, listeners)

    assert finding.level is Level.PROBLEM
    assert finding.text == text


@pytest.mark.parametrize("speech", [Speech.HTTP2, Speech.TLS])
def test_what_may_be_a_coordinator_is_judged_later(speech: Speech) -> None:
    """One process, however many sockets it has."""
    twice = [Listener("10.0.0.1", 12, "python3"), Listener("127.0.0.1", 12, "python3")]

    assert check_listener(HEAD, Heard(speech), twice) == []


def test_several_listeners_on_a_port_are_a_warning() -> None:
    """Which of them gets a connection depends on the address."""
    others = [PYTHON, Listener("127.0.0.1", 13, "java")]
    (finding,) = check_listener(HEAD, Heard(Speech.HTTP2), others)

    assert finding.level is Level.WARNING
    assert finding.text == (
        "several programs listen on port 50051: python3 (12) on *, java (13) on 127.0.0.1"
    )


@pytest.mark.parametrize(
    ("address", "listening", "expected"),
    [
        ("10.0.0.1", [], True),
        ("127.0.0.1", [], False),
        ("127.0.0.1", ["*"], True),
        ("127.0.0.1", ["127.0.0.1", "::1"], False),
        ("10.0.0.1", ["10.0.0.1"], True),
    ],
)
def test_other_hosts_reach_what_listens_beyond_loopback(
    address: str, listening: list[str], expected: bool
) -> None:
    """On this host the sockets show it; elsewhere the address does."""
    listeners = [Listener(one, 12, "python3") for one in listening]

    assert is_exposed(address, listeners) is expected
