"""What an auth file may say, and what it means."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rallypoint.server.access.auth_file import (
    AuthFile,
    AuthFileInvalid,
    require_safe,
)
from rallypoint.server.access.caller import Caller, Proof
from rallypoint.server.access.rules import (
    ENTRIES_MAX,
    EVERY_CERTIFICATE,
    Rules,
    RulesInvalid,
    parse_rules,
)
from rallypoint.wire.access import GRANTED_ROLES, Role
from support.access.protected import entry, write_rules

OLD, NEW = "the-old-token-012345", "the-new-token-012345"
EVERY = "a-token-with-every-role"


def test_both_tokens_of_an_entry_count() -> None:
    """The old one and the new one, while it is replaced; nothing else does."""
    rules = parse_rules(entry("ann", "operator", OLD, NEW, more='jobs = ["a-*"]'))
    ann = Caller("ann", (Role.OPERATOR,), Proof.TOKEN, ("a-*",))

    assert (ann, ann) == (rules.find_token(OLD), rules.find_token(NEW))
    assert [None] * 4 == [rules.find_token(one) for one in ("", "x", OLD[:-1], OLD.upper())]


def test_token_expires() -> None:
    """At the instant that the entry says, in any zone."""
    text = entry("ann", "viewer", OLD, more="expires = 1970-01-01T01:00:01+01:00")
    found = parse_rules(text).find_token(OLD)

    assert found is not None
    assert 1_000 == found.expires_ms


def test_names_of_certificates_are_patterns() -> None:
    """Of a common name or a DNS name; each entry that fits gives its role."""
    rules = parse_rules(
        '[[certificate]]\nname = "ops-*"\nrole = "operator"\n'
        '[[certificate]]\nname = "*.example"\nrole = "agent"\njobs = ["a"]'
    )
    operator = Caller("ops-1", (Role.OPERATOR,), Proof.CERTIFICATE)
    agent = Caller("n1.example", (Role.AGENT,), Proof.CERTIFICATE, ("a",))

    assert () == rules.find_certificate(["n1", "OPS-1", "ops"])
    assert (operator,) == rules.find_certificate(["ops-1", "ops-2"])
    assert (operator, agent) == rules.find_certificate(["ops-1", "n1.example"])
    assert () == rules.find_certificate([])


def test_without_a_file_each_certificate_has_every_role() -> None:
    """Its authority decides who gets one."""
    expected = (Caller("n1", GRANTED_ROLES, Proof.CERTIFICATE),)

    assert expected == EVERY_CERTIFICATE.find_certificate(["n1", "n1.example"])
    assert () == EVERY_CERTIFICATE.find_certificate([])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no [[token]]"),
        ("[[token]", "it is not TOML"),
        ("[[tokens]]", "unknown field `tokens`"),
        ('[[token]]\nname = "a"\nrole = "agent"', "missing required field `sha256`"),
        (entry("a", "root", OLD), "Invalid enum value 'root'"),
        (entry("a", "worker", OLD), "role is not agent"),
        (entry("a", "relay", OLD, more='jobs = ["x"]'), "a relay has no jobs"),
        (entry("a", "agent"), "not one or 2 digests"),
        (entry("a", "agent", "x", "y", "z"), "not one or 2 digests"),
        (entry("", "agent", OLD), "the name has not"),
        (entry("a\\nb", "agent", OLD), "the name has not"),
        (entry("a", "agent", OLD) + entry("a", "agent", NEW), "same name or digest"),
        (entry("a", "agent", OLD) + entry("b", "agent", OLD), "same name or digest"),
        (entry("a", "agent", OLD, more="expires = 2027-01-01T00:00:00"), "no time zone"),
        (entry("a", "agent", OLD, more="expires = 2027-01-01"), "datetime"),
        (entry("a", "agent", OLD, more='job = ["x"]'), "unknown field `job`"),
        (entry("a", "agent", OLD, more='jobs = [""]'), "jobs has over"),
        ('[[token]]\nname = "a"\nrole = "agent"\nsha256 = ["secret"]', "not 64 hexadecimal"),
        (
            "\n".join(entry(f"n{n}", "agent", f"t{n}") for n in range(ENTRIES_MAX + 1)),
            f"or over {ENTRIES_MAX}",
        ),
    ],
)
def test_bad_file_is_refused(text: str, problem: str) -> None:
    """The line says which entry, and never shows what it has of a token."""
    with pytest.raises(RulesInvalid) as raised:
        parse_rules(text)

    assert problem in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_token_of_the_environment_has_every_role(tmp_path: Path) -> None:
    """Beside those of the file, or without a file; a short one is refused."""
    path = write_rules(tmp_path / "auth.toml", entry("ann", "viewer", OLD))
    every = Caller("RALLYPOINT_TOKEN", GRANTED_ROLES, Proof.TOKEN)

    both, alone = AuthFile(path, EVERY), AuthFile("", EVERY)
    assert (every, every) == (both.rules.find_token(EVERY), alone.rules.find_token(EVERY))
    assert both.rules.find_token(OLD) is not None
    with pytest.raises(RulesInvalid, match="RALLYPOINT_TOKEN has fewer than 16"):
        AuthFile(path, "short")


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644])
def test_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """At the start; its line says what to do."""
    path = tmp_path / "auth.toml"
    write_rules(path)
    path.chmod(mode)

    with pytest.raises(AuthFileInvalid, match=f"run `chmod 640 {path}`"):
        AuthFile(str(path))
    path.chmod(0o640)
    AuthFile(str(path))


def test_auth_file_in_a_folder_of_all_is_refused(tmp_path: Path) -> None:
    """A user who can rename a folder above it could let anyone in; a sticky folder is fine."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "auth.toml"
    write_rules(path)

    with pytest.raises(AuthFileInvalid) as raised:
        AuthFile(str(path))
    assert str(raised.value) == f"another user could replace {path}: everyone can write {folder}"
    folder.chmod(0o1777)
    AuthFile(str(path))


ME, OTHER = 1_000, 1_001


@pytest.mark.parametrize(
    ("owner", "mode", "problem"),
    [
        (ME, 0o600, ""),
        (ME, 0o640, ""),
        (0, 0o640, ""),
        (OTHER, 0o600, "belongs to user 1001, who could change it: run `chown 1000 auth.toml`"),
        (OTHER, 0o400, "belongs to user 1001"),
        (0, 0o660, "others can read or change"),
        (ME, 0o602, "others can read or change"),
    ],
)
def test_owner_and_mode(owner: int, mode: int, problem: str) -> None:
    """The coordinator's user or root, and no one else."""
    status = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, owner, OTHER, 1, 0, 0, 0))
    if not problem:
        require_safe("auth.toml", status, ME)
        return
    with pytest.raises(AuthFileInvalid) as raised:
        require_safe("auth.toml", status, ME)

    assert problem in str(raised.value)


def test_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, and later: then the rules before count."""
    path = tmp_path / "auth.toml"
    write_rules(path, entry("ann", "viewer", OLD))
    file = AuthFile(str(path))
    if os.geteuid() == 0:
        os.chown(path, OTHER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        path.touch()
    with capture_logs() as lines:
        file.look()
        file.look()

    assert ["auth_file_rejected"] == [line["event"] for line in lines]
    assert "who could change it" in lines[0]["why"]
    assert file.rules.find_token(OLD) is not None
    with pytest.raises(AuthFileInvalid, match="who could change it"):
        AuthFile(str(path))


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    """At once: a pipe without a writer, for one, would block its reader."""
    path = tmp_path / "auth.toml"
    match kind:
        case "pipe":
            os.mkfifo(path, 0o600)
        case "directory":
            path.mkdir(0o700)
        case _:
            path.symlink_to("/dev/zero")

    with pytest.raises(AuthFileInvalid, match=f"it is a {kind}, not a regular file"):
        AuthFile(str(path))


@pytest.mark.parametrize("content", [None, b"\xff", b"x" * 2_000_000])
def test_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """In one line that names it."""
    path = tmp_path / "auth.toml"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)

    with pytest.raises(AuthFileInvalid, match=str(path)):
        AuthFile(str(path))


def test_changed_file_counts(tmp_path: Path) -> None:
    """A token that was added or removed; the log has one line."""
    path = tmp_path / "auth.toml"
    source = AuthFile(write_rules(path, entry("ann", "viewer", OLD)), EVERY)
    source.look()
    write_rules(path, entry("ann", "viewer", NEW))
    with capture_logs() as lines:
        source.look()
        source.look()

    assert [None, True, True] == [
        source.rules.find_token(OLD),
        source.rules.find_token(NEW) is not None,
        source.rules.find_token(EVERY) is not None,
    ]
    assert [("auth_file_renewed", 2)] == [(line["event"], line["entries"]) for line in lines]


@pytest.mark.parametrize("fault", ["text", "mode", "absent"])
def test_bad_change_keeps_the_rules(tmp_path: Path, fault: str) -> None:
    """One warning, at the second look, and the rules before count until the file is good."""
    path = tmp_path / "auth.toml"
    source = AuthFile(write_rules(path, entry("ann", "viewer", OLD)))
    match fault:
        case "text":
            write_rules(path, "[[tok")
        case "mode":
            path.chmod(0o644)
        case "absent":
            os.remove(path)
    with capture_logs() as lines:
        source.look()
        assert [] == lines
        source.look()
        source.look()

    (line,) = lines
    assert ("auth_file_rejected", "warning") == (line["event"], line["log_level"])
    assert str(path) in line["why"]
    assert source.rules.find_token(OLD) is not None
    write_rules(path, entry("ann", "viewer", NEW))
    source.look()
    assert [None, True] == [
        source.rules.find_token(OLD),
        source.rules.find_token(NEW) is not None,
    ]


@pytest.mark.parametrize("token", ["two words 0123456789", "\u00e9" * 20, "\udcff" * 20, "\n" * 20])
def test_token_that_no_client_can_send_is_refused(token: str) -> None:
    """One in the environment may be any bytes; the line has none of it."""
    with pytest.raises(RulesInvalid, match="is not one word of ASCII") as raised:
        Rules().with_token(token)

    assert token not in str(raised.value)
