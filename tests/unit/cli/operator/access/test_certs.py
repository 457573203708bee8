"""`rallypoint certs` and `rallypoint token`."""

from __future__ import annotations

import datetime
import hashlib
import stat
import tomllib
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from rallypoint.cli.operator import app
from rallypoint.cli.operator.access import authority, commands
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.wire.access import Access
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import Credentials
from rallypoint.wire.resolved import Resolved
from support.access.authority import Pair
from support.access.greeters import METHOD, greeting

NOW = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.UTC)


def run(*words: str) -> int:
    return app.main(words[0], words[1:])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the commands make here."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "certs"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_coordinator_and_client_know_each_other(folder: Path) -> None:
    """With what three commands have made, and nothing else."""
    assert run("certs", "init") == 0
    assert run("certs", "issue", "head", "--host", "head", "--host", "127.0.0.1") == 0
    assert run("certs", "issue", "ops-ann") == 0
    paths = {name: str(folder / name) for name in ("ca.pem", "ops-ann.pem", "ops-ann.key")}
    access = Access(
        ca_file=paths["ca.pem"], cert_file=paths["ops-ann.pem"], key_file=paths["ops-ann.key"]
    )
    server = Pair(str(folder / "head.pem"), str(folder / "head.key"))
    with greeting(server, access.ca_file) as port:
        at = Resolved(f"127.0.0.1:{port}")
        with Credentials(access).open_channel(at, client_options()) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)

            assert call(b"", timeout=10) == b"ops-ann|"


def test_keys_are_private(folder: Path) -> None:
    """And so is the folder; certificates are for everyone."""
    run("certs", "init")
    run("certs", "issue", "n")

    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == {
        "ca.key": 0o600,
        "ca.pem": 0o644,
        "n.key": 0o600,
        "n.pem": 0o644,
    }


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless --renew replaces a certificate. The authority cannot be replaced."""
    run("certs", "init")
    run("certs", "issue", "n")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    capsys.readouterr()
    codes = [run("certs", "init"), run("certs", "issue", "n")]
    errors = capsys.readouterr().err.splitlines()
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run("certs", "issue", "n", "--renew") == 0
    renewed = {path.name: path.read_bytes() for path in folder.iterdir()}

    assert (codes, after) == ([1, 1], before)
    assert errors == [
        "rallypoint certs init: error: certs/ca.pem is there already; choose another --folder",
        "rallypoint certs issue: error: certs/n.pem is there already; replace it with --renew",
    ]
    changed = {name for name in before if before[name] != renewed[name]}
    assert changed == {"n.pem", "n.key"}
    assert set(renewed) == set(before)


def test_certificate_ends_with_its_authority(tmp_path: Path) -> None:
    """At the latest, and an authority that has ended signs none."""
    authority.init_authority(tmp_path, "a", 10, NOW)
    early = authority.issue(tmp_path, "early", (), 5, NOW)
    late = authority.issue(tmp_path, "late", (), 365, NOW)
    found = x509.load_pem_x509_certificate(late.cert.read_bytes())

    assert early.ends == NOW + datetime.timedelta(days=5)
    assert late.ends == found.not_valid_after_utc == NOW + datetime.timedelta(days=10)
    with pytest.raises(CommandFailed, match="has expired: make another"):
        authority.issue(tmp_path, "n", (), 5, NOW + datetime.timedelta(days=11))


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (
            ("n",),
            3,
            "there is no authority in certs: name its --folder, or make one: rallypoint certs init",
        ),
        (("../n",), 2, "'../n': a name has 1 to 64 letters, digits and . _ @ -, and is not ca"),
        (("CA",), 2, "'CA': a name has 1 to 64 letters, digits and . _ @ -, and is not ca"),
        (("ca",), 2, "'ca': a name has 1 to 64 letters, digits and . _ @ -, and is not ca"),
        (("n", "--host", "a b"), 2, "'a b' is neither a host name nor an address"),
        (("n", "--days", "0"), 2, "--days must be 1 to 36500"),
    ],
)
def test_wrong_wishes_are_refused(
    words: tuple[str, ...], code: int, line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, and nothing is written."""
    assert run("certs", "issue", *words) == code
    assert capsys.readouterr().err == f"rallypoint certs issue: error: {line}\n"
    assert not folder.exists()


def test_damaged_authority_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its key may have been cut off."""
    run("certs", "init")
    (folder / "ca.key").write_text("-----BEGIN")
    capsys.readouterr()

    assert run("certs", "issue", "n") == 1
    assert "certs/ca.pem or certs/ca.key is damaged" in capsys.readouterr().err


def test_token_is_shown_once_and_stored_as_a_digest(capsys: pytest.CaptureFixture[str]) -> None:
    """The entry is TOML that a coordinator reads."""
    words = ("--name", 'a "b" ü', "--role", "viewer", "--job", "train-*", "--days", "30")
    assert run("token", "new", *words) == 0
    text = capsys.readouterr().out
    token = text.splitlines()[1]
    (entry,) = tomllib.loads(text.partition("auth file:")[2])["token"]

    assert len(token) >= 40
    assert text.count(token) == 1
    assert (entry["name"], entry["role"], entry["jobs"]) == ('a "b" ü', "viewer", ["train-*"])
    assert entry["sha256"] == [hashlib.sha256(token.encode()).hexdigest()]
    assert entry["expires"].tzinfo is not None


def test_token_of_a_relay_has_no_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """Each agent that it carries has its own."""
    assert run("token", "new", "--name", "rack", "--role", "relay") == 0
    assert 'role = "relay"' in capsys.readouterr().out
    assert run("token", "new", "--name", "rack", "--role", "relay", "--job", "x") == 2
    assert "--job is not for relays" in capsys.readouterr().err


def test_no_token_makes_a_worker(capsys: pytest.CaptureFixture[str]) -> None:
    """The round of a worker gives it its role."""
    assert run("token", "new", "--name", "w", "--role", "worker") == 2
    assert "'worker' is not one of agent, operator, viewer, relay" in capsys.readouterr().err


def test_token_in_a_file_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is new, and its owner's alone."""
    path = tmp_path / "token"
    assert run("token", "new", "--name", "n", "--file", str(path)) == 0
    out = capsys.readouterr().out
    token = path.read_text().strip()

    assert token not in out
    assert hashlib.sha256(token.encode()).hexdigest() in out
    assert mode(path) == 0o600
    assert run("token", "new", "--name", "n", "--file", str(path)) == 1
    assert "is there already: name a new file" in capsys.readouterr().err


def test_folder_of_an_authority_is_not_open_to_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who can replace files there could become the authority."""
    folder.mkdir()
    folder.chmod(0o777)

    assert run("certs", "init") == 1
    assert "others can replace files in certs: run `chmod 700 certs`" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_without_cryptography_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not installed by default."""
    monkeypatch.setattr(commands, "find_spec", lambda name: None)

    assert run("certs", "init") == 1
    assert "pip install cryptography" in capsys.readouterr().err
