"""What protects a hosted coordinator, and what is wrong when its nodes would not accept it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.agent.hosting.protection import Protection, describe_admission
from rallypoint.wire.access import Access, AccessFailed
from support.access.authority import Authority

TOKEN = "a-token-of-the-job-0123456789"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "a")


def access(authority: Authority, *hosts: str, days: int = 1, server_name: str = "") -> Access:
    pair = authority.issue("head", hosts, days=days)
    return Access(
        ca_file=authority.ca, cert_file=pair.cert, key_file=pair.key, server_name=server_name
    )


def refusal(access: Access, host: str = "head") -> str:
    with pytest.raises(AccessFailed) as refused:
        Protection(access, host)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_without_access_there_is_nothing() -> None:
    """No flag and no token: a trusted network."""
    made = Protection(Access(), "head")

    assert (made.flags, made.token) == ((), "")


def test_certificate_of_the_node_is_that_of_the_coordinator(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients need one of the same authority. Its paths are absolute; no token is a flag."""
    monkeypatch.chdir(tmp_path)
    pair = authority.issue("head", ["head", "10.0.0.1"])
    relative = [str(Path(path).relative_to(tmp_path)) for path in (pair.cert, pair.key)]
    own = Access(ca_file=authority.ca, cert_file=relative[0], key_file=relative[1], token=TOKEN)
    flags = (f"--tls-cert={pair.cert}", f"--tls-key={pair.key}", f"--tls-client-ca={authority.ca}")

    assert Protection(own, "head").flags == flags
    assert Protection(own, "10.0.0.1").token == TOKEN


@pytest.mark.parametrize(
    ("access", "who"),
    [
        (Access(), "all who reach the port; RALLYPOINT_TOKEN limits it"),
        (Access(cert_file="c"), "all who reach the port; RALLYPOINT_TOKEN or --tls-ca limits it"),
        (Access(ca_file="ca.pem", cert_file="c"), "all who have a certificate of ca.pem"),
        (Access(ca_file="ca.pem", cert_file="c", token=TOKEN), ""),
        (Access(token_file="t"), ""),
    ],
)
def test_agent_that_hosts_says_who_may_join(access: Access, who: str) -> None:
    """Unless there is a token: who has it may join."""
    assert describe_admission(access) == who


def test_host_without_a_certificate_is_told_what_is_missing(authority: Authority) -> None:
    """With the authority alone a node can be a client, but not the host."""
    text = refusal(Access(ca_file=authority.ca))

    assert "has no certificate: give --tls-cert and --tls-key" in text
    assert text.endswith(
        "or RALLYPOINT_TLS=0"
    )  # a worker that is a launcher inherits the variables
    assert "`rallypoint certs issue NAME --host head`" in text
    assert "has no certificate" in refusal(Access(is_tls=True))


@pytest.mark.parametrize(("host", "names"), [("head", "a.example, 10.0.0.1"), ("10.0.0.2", "b")])
def test_certificate_for_other_hosts_is_refused_with_its_names(
    authority: Authority, host: str, names: str
) -> None:
    """Nodes would refuse it. Either they verify another name, or it has to be replaced."""
    own = access(authority, *names.split(", "))

    assert f" is for {names}, not for {host}: give all nodes --tls-server-name" in refusal(
        own, host
    )
    assert f"`rallypoint certs issue NAME --host {host}`" in refusal(own, host)


def test_other_name_to_verify_is_what_counts(authority: Authority) -> None:
    """--tls-server-name is the same on all nodes."""
    assert Protection(access(authority, "a.example", server_name="a.example"), "head").flags
    text = refusal(access(authority, "head", server_name="a.example"))

    assert text.endswith(" is for head, not for a.example (--tls-server-name)")
    assert " is for no host, not for other: " in refusal(access(authority), "other")


def test_certificate_that_no_node_would_accept(authority: Authority, tmp_path: Path) -> None:
    """It has expired, or is of another authority."""
    other = Authority(tmp_path / "b", "other authority").issue("head", ["head"])
    strange = Access(ca_file=authority.ca, cert_file=other.cert, key_file=other.key)

    assert "has expired: renew it" in refusal(access(authority, "head", days=-2))
    assert refusal(strange) == (
        f"{other.cert} is not of an authority in {authority.ca}: check --tls-ca"
    )


def test_certificate_for_clients_only(tmp_path: Path) -> None:
    """`certs issue` makes it for nodes that do not host."""
    certs = [sys.executable, "-m", "rallypoint", "certs"]
    for words in (["init"], ["issue", "node"], ["issue", "both", "--host", "head"]):
        line = [*certs, *words, "--folder", str(tmp_path)]
        subprocess.run(line, check=True, capture_output=True, timeout=60)

    def made(name: str) -> Access:
        cert, key = (str(tmp_path / f"{name}.{end}") for end in ("pem", "key"))
        return Access(ca_file=str(tmp_path / "ca.pem"), cert_file=cert, key_file=key)

    assert len(Protection(made("both"), "head").flags) == 3
    assert "is not for servers and clients, and a host is both: use" in refusal(made("node"))


@pytest.mark.parametrize("is_file", [False, True])
def test_short_token_is_refused_before_anything_starts(tmp_path: Path, is_file: bool) -> None:
    """The coordinator would refuse it at its start, again and again."""
    (tmp_path / "token").write_text("short\n")
    path = str(tmp_path / "token")
    text = refusal(Access(token_file=path) if is_file else Access(token="short"))

    assert text.startswith(path if is_file else "RALLYPOINT_TOKEN")
    assert "fewer than 16 characters" in text
    assert "rallypoint token new" in text
    assert Protection(Access(token=TOKEN), "head").token == TOKEN
