"""How `doctor` finds its facts: certificates, what listens, sockets of the kernel, files."""

from __future__ import annotations

import base64
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.cli.operator.doctor.encryption import check_own, listen
from rallypoint.cli.operator.doctor.network import (
    Endpoint,
    Listener,
    Reach,
    connect,
    find_listeners,
    is_own,
    look_up,
    read_endpoint,
    read_table,
)
from rallypoint.cli.operator.reaching import Heard, Speech, classify
from rallypoint.wire.access import Access
from rallypoint.wire.certificates import read_certificate, read_pem
from support.access.authority import Authority

DAY_S = 86_400
KNOWN = Path(__file__).parents[4] / "support" / "etcd" / "tls" / "client.pem"
DER = base64.b64decode("".join(KNOWN.read_text().splitlines()[1:-1]))


def test_a_certificate_is_read(tmp_path: Path) -> None:
    """Holder, authority, names and dates; trusted or not."""
    authority = Authority(tmp_path, "our CA")
    pair = authority.issue("head", ["head", "10.0.0.1", "::1"], days=1)
    found = read_pem(Path(pair.cert).read_text())
    now_s = datetime.now(UTC).timestamp()

    assert (found.subject, found.issuer) == ("head", "our CA")
    assert found.names == ("head", "10.0.0.1", "::1")
    assert abs(found.ends_s - now_s - DAY_S) < 60
    assert abs(found.begins_s - now_s + 10 * DAY_S) < 60
    assert read_pem(Path(authority.ca).read_text()).names == ()


def test_a_certificate_of_openssl_is_read() -> None:
    """One without a common name, whose end has a year of four digits."""
    found = read_certificate(DER)

    assert (found.subject, found.names) == ("rallypoint tests", ("127.0.0.1",))
    assert time.gmtime(found.begins_s)[:3] == (2026, 11, 23)
    assert time.gmtime(found.ends_s)[0] == 2126


@settings(deadline=None)
@given(st.integers(0, len(DER) - 1), st.binary(max_size=8), st.integers(0, 8))
def test_a_damaged_certificate_is_refused_or_read(at: int, other: bytes, gone: int) -> None:
    """It comes from the network: no other error than ValueError, and no endless loop."""
    damaged = DER[:at] + other + DER[at + gone :]
    try:
        read_certificate(damaged)
    except ValueError as error:
        assert str(error).startswith("no certificate")


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN CERTIFICATE-----\n!\n-----END"])
def test_what_is_no_certificate_is_refused(text: str) -> None:
    """With a reason."""
    with pytest.raises(ValueError, match="no certificate"):
        read_pem(text)


@pytest.mark.parametrize(
    ("answer", "is_closed", "heard"),
    [
        (bytes((0, 0, 6, 4, 0, 0, 0, 0, 0)) + b"settings", False, Heard(Speech.HTTP2)),
        (bytes((0x15, 3, 1, 0, 2, 2, 70)), True, Heard(Speech.TLS)),
        (b"HTTP/1.0 400 Bad\r\nx: y", True, Heard(Speech.HTTP1, "HTTP/1.0 400 Bad")),
        (b"\x1b[2JSSH-2.0\r\n", False, Heard(Speech.OTHER, "SSH-2.0")),
        (b"\n", True, Heard(Speech.OTHER)),
        (b"", True, Heard(Speech.OTHER)),
        (b"", False, Heard(Speech.NOTHING)),
    ],
)
def test_an_answer_shows_what_listens(answer: bytes, is_closed: bool, heard: Heard) -> None:
    """Its words are made safe for a terminal."""
    assert classify(answer, is_closed=is_closed) == heard


def test_what_stays_silent_is_waited_for_a_moment() -> None:
    """It accepts the connection, and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard = listen(Endpoint("127.0.0.1", server.getsockname()[1]), limit_s=0.05)

    assert heard == Heard(Speech.NOTHING)


def test_every_address_is_tried_until_one_answers() -> None:
    """In order."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        attempts = connect(("127.0.0.2", "127.0.0.1", "127.0.0.3"), port, 30.0)

    assert [one.reach for one in attempts] == [Reach.REFUSED, Reach.OPEN]


def test_names_are_looked_up() -> None:
    """An address is its own name; a wrong one has the resolver's words."""
    assert look_up("127.0.0.1", 30.0).addresses == ("127.0.0.1",)
    assert look_up("no-such-host.invalid", 30.0).error != ""
    assert look_up("a" * 300, 30.0).error != ""


def test_the_process_on_a_port_is_found() -> None:
    """With its address; a free port has none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = find_listeners(port)
    name = Path("/proc/self/comm").read_text().strip()

    assert found == [Listener("127.0.0.1", os.getpid(), name)]
    assert find_listeners(port) == []


TABLE = """\
  sl  local_address rem_address   st
   0: 00000000:C383 00000000:0000 0A 0:0 00:0 0 0 0 111 1 0 100 0 0 10 0
   1: 0100007F:C383 00000000:0000 0A 0:0 00:0 0 0 0 112 1 0 100 0 0 10 0
   2: 0100007F:C383 0100007F:D431 01 0:0 00:0 0 0 0 113 1 0 100 0 0 10 0
   3: 0100007F:0016 00000000:0000 0A 0:0 00:0 0 0 0 114 1 0 100 0 0 10 0
nonsense
"""
TABLE_6 = """\
  sl  local_address                         remote_address                        st
   0: 0000000000000000FFFF00000100007F:C383 0:0000 0A 0:0 00:0 0 0 0 115 1 0 100 0 0 10 0
   1: 00000000000000000000000001000000:C383 0:0000 0A 0:0 00:0 0 0 0 116 1 0 100 0 0 10 0
"""


def test_the_kernels_tables_are_read() -> None:
    """Only sockets that listen on the port; the words of addresses are in the host's order."""
    assert read_table(TABLE, 50_051) == {"111": "*", "112": "127.0.0.1"}
    assert read_table(TABLE_6, 50_051) == {"115": "127.0.0.1", "116": "::1"}
    assert read_table("", 50_051) == {}


def test_addresses_of_this_host_are_known() -> None:
    """Others cannot be bound."""
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.1")


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("head:50051", Endpoint("head", 50_051)),
        ("[fd00::1]:29400", Endpoint("fd00::1", 29_400)),
    ],
)
def test_an_endpoint_is_read_and_shown(text: str, endpoint: Endpoint) -> None:
    """With brackets around an IPv6 address."""
    assert read_endpoint(text) == endpoint
    assert str(endpoint) == text


def test_the_files_of_this_side_are_looked_at(tmp_path: Path) -> None:
    """The certificate is read, and what cannot be used is named with the check it belongs to."""
    authority = Authority(tmp_path)
    pair = authority.issue("ops", days=30)
    token = tmp_path / "token"
    token.write_text("secret")
    whole = Access(
        ca_file=authority.ca, cert_file=pair.cert, key_file=pair.key, token_file=str(token)
    )
    missing = str(tmp_path / "none")
    found = [
        check_own(one, time.time())  # noqa: TID251  certificates are dated by wall clocks
        for one in (
            whole,
            Access(),
            Access(ca_file=missing),
            Access(token_file=missing),
            Access(cert_file=pair.cert, key_file=missing),
        )
    ]

    assert "the certificate 'ops' is valid for 30 days more" == found[0][0].text
    assert found[1] == []
    assert [one.check for (one,) in found[2:]] == ["TLS", "token", "own certificate"]
    for (one,) in found[2:]:
        assert one.text.startswith("cannot read ")
        assert one.advice.endswith(f"ls -l {missing}")
    assert "secret" not in repr(found)
