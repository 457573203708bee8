"""How a client proves who it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from rallypoint.wire import credentials as credentials_module
from rallypoint.wire.access import PLAIN, Access, AccessFailed, from_environment, to_environment
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import Credentials, find_readable
from rallypoint.wire.resolved import Resolved, resolve
from support.access.authority import Authority
from support.access.greeters import METHOD, greeting

TIMEOUT_S = 10


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def next_look(self, credentials: Credentials) -> None:
        self.now_s += credentials_module.LOOK_S
        credentials.look()


def greet(credentials: Credentials, port: int, host: str = "127.0.0.1") -> str:
    with credentials.open_channel(resolve(f"{host}:{port}"), client_options()) as channel:
        call: Callable[..., bytes] = channel.unary_unary(METHOD)
        return call(b"", timeout=TIMEOUT_S, metadata=credentials.metadata()).decode()


async def greet_aio(credentials: Credentials, port: int) -> str:
    at = Resolved(f"127.0.0.1:{port}")
    async with credentials.open_aio_channel(at, client_options()) as channel:
        call: Any = channel.unary_unary(METHOD)
        answer: bytes = await call(b"", timeout=TIMEOUT_S, metadata=credentials.metadata())
        return answer.decode()


def renew(path: str, content: str | bytes) -> None:
    fresh = Path(path + ".fresh")
    fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(fresh, path)


def test_without_access_nothing_is_encrypted_or_shown() -> None:
    """As with every coordinator so far."""
    credentials = Credentials(PLAIN)
    with greeting() as port:
        answer = greet(credentials, port)

    assert (answer, credentials.metadata(), credentials.version) == ("|", (), 1)


async def test_token_travels_in_the_metadata(tmp_path: Path) -> None:
    """With both kinds of channels; the file counts before the variable."""
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    credentials = Credentials(Access(token="from-a-variable", token_file=str(file)))
    with greeting() as port:
        answers = greet(credentials, port), await greet_aio(credentials, port)

    assert answers == ("|Bearer from-the-file", "|Bearer from-the-file")


async def test_both_sides_prove_themselves(authority: Authority) -> None:
    """With both kinds of channels."""
    own = authority.issue("node-3")
    access = Access(ca_file=authority.ca, cert_file=own.cert, key_file=own.key, token="t")
    credentials = Credentials(access)
    with greeting(authority.issue("coordinator", ["127.0.0.1"]), authority.ca) as port:
        answers = greet(credentials, port), await greet_aio(credentials, port)

    assert answers == ("node-3|Bearer t", "node-3|Bearer t")


def test_name_of_the_certificate_may_be_another_than_the_host(authority: Authority) -> None:
    """For those who connect by an address, or through a tunnel."""
    access = Access(ca_file=authority.ca, server_name="coordinator.example")
    with greeting(authority.issue("any", ["coordinator.example"])) as port:
        assert greet(Credentials(access), port) == "|"


def test_certificate_for_another_host_is_refused(authority: Authority) -> None:
    """Nothing was sent to it then."""
    with greeting(authority.issue("any", ["coordinator.example"])) as port:
        with pytest.raises(grpc.RpcError) as failed:
            greet(Credentials(Access(ca_file=authority.ca)), port)

    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


def test_certificate_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    """Also where only the system's authorities count."""
    foreign = Authority(tmp_path / "foreign")
    with greeting(foreign.issue("coordinator", ["127.0.0.1"])) as port:
        for access in (Access(ca_file=authority.ca), Access(is_tls=True)):
            with pytest.raises(grpc.RpcError) as failed:
                greet(Credentials(access), port)

            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


def test_renewed_token_counts_from_the_next_call_on(tmp_path: Path) -> None:
    """After the next look. One that is of no use leaves the old one, and says why."""
    file = tmp_path / "token"
    file.write_text("old")
    clock = Clock()
    credentials = Credentials(Access(token_file=str(file)), clock)
    renew(str(file), "new")
    before = credentials.metadata()
    clock.next_look(credentials)
    after = credentials.metadata()
    renew(str(file), "")
    clock.next_look(credentials)

    assert (before, after) == (
        (("authorization", "Bearer old"),),
        (("authorization", "Bearer new"),),
    )
    assert credentials.metadata() == after
    assert credentials.problem == f"{file} is empty: it has no token"
    assert credentials.version == 1

    renew(str(file), "newest")
    clock.next_look(credentials)

    assert credentials.metadata() == (("authorization", "Bearer newest"),)
    assert credentials.problem == ""


def test_renewed_certificates_ask_for_another_channel(authority: Authority) -> None:
    """Once both files have been replaced: in between, the old pair counts."""
    own, fresh = authority.issue("old"), authority.issue("new")
    access = Access(ca_file=authority.ca, cert_file=own.cert, key_file=own.key)
    clock = Clock()
    credentials = Credentials(access, clock)
    with greeting(authority.issue("coordinator", ["127.0.0.1"]), authority.ca) as port:
        answers = [greet(credentials, port)]
        renew(own.cert, Path(fresh.cert).read_bytes())
        clock.next_look(credentials)
        answers.append(greet(credentials, port))
        version, problem = credentials.version, credentials.problem
        renew(own.key, Path(fresh.key).read_bytes())
        clock.next_look(credentials)
        answers.append(greet(credentials, port))

    assert answers == ["old|", "old|", "new|"]
    assert (version, credentials.version) == (1, 2)
    assert problem == f"the key in {own.key} does not belong to the certificate in {own.cert}"


def test_files_that_are_only_touched_ask_for_nothing(authority: Authority) -> None:
    """Tools write what has not changed, too."""
    own = authority.issue("same")
    clock = Clock()
    access = Access(cert_file=own.cert, key_file=own.key, ca_file=authority.ca)
    credentials = Credentials(access, clock)
    own.replace_with(own)
    clock.next_look(credentials)

    assert credentials.version == 1


def test_files_are_looked_at_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls there are."""
    file = tmp_path / "token"
    file.write_text("t")
    clock = Clock()
    credentials = Credentials(Access(token_file=str(file)), clock)
    looks: list[object] = []
    monkeypatch.setattr(credentials_module, "_sign", lambda paths: looks.append(paths))
    clock.next_look(credentials)
    for _ in range(100):
        credentials.look()

    assert len(looks) == 1


async def test_only_looks_read_files(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an event loop asks for never waits for a file system, however old the last look is."""
    clock = Clock()
    credentials = Credentials(Access(ca_file=authority.ca, token="t"), clock)
    clock.now_s += 10 * credentials_module.LOOK_S
    monkeypatch.setattr(credentials_module, "_sign", None)
    credentials.metadata()
    await credentials.open_aio_channel(Resolved("127.0.0.1:1"), []).close()
    credentials.open_channel(Resolved("127.0.0.1:1"), []).close()

    assert (credentials.version, credentials.is_due) == (1, True)


def broken(folder: Path, authority: Authority) -> list[tuple[Access, str]]:
    """What is of no use, and the line about it."""
    own, other = authority.issue("own"), authority.issue("other")
    empty, text, binary, wide = (folder / name for name in ("empty", "text", "binary", "wide"))
    empty.write_text("\n")
    text.write_text("two words")
    binary.write_bytes(b"\xff\x00")
    wide.write_bytes(b" " * (credentials_module.FILE_BYTES_MAX + 1))
    locked = Path(other.key).read_text().replace("BEGIN PRIVATE", "BEGIN ENCRYPTED PRIVATE")
    (folder / "locked").write_text(locked)
    missing, pipe = folder / "missing", folder / "pipe"
    os.mkfifo(pipe)
    not_regular = "not a regular file"

    def pair(cert: str, key: str) -> Access:
        return Access(ca_file=authority.ca, cert_file=cert, key_file=key)

    one_word = "a token is one word of ASCII letters, digits and punctuation"
    return [
        (Access(ca_file=str(missing)), f"cannot read {missing}: No such file or directory"),
        (Access(token_file=str(missing)), f"cannot read {missing}: No such file or directory"),
        (
            Access(token_file=str(folder)),
            f"cannot read {folder}: it is a directory, not a regular file",
        ),
        (Access(token_file=str(pipe)), f"cannot read {pipe}: it is a pipe, {not_regular}"),
        (Access(ca_file=str(pipe)), f"cannot read {pipe}: it is a pipe, {not_regular}"),
        (pair(str(pipe), own.key), f"cannot read {pipe}: it is a pipe, {not_regular}"),
        (pair(own.cert, "/dev/zero"), f"cannot read /dev/zero: it is a device, {not_regular}"),
        (Access(token_file=str(empty)), f"{empty} is empty: it has no token"),
        (Access(token_file=str(text)), f"{text}: {one_word}"),
        (Access(token_file=str(binary)), f"{binary}: {one_word}"),
        (Access(token_file=str(wide)), f"{wide} is larger than 1024 KiB"),
        (Access(token="two words"), f"RALLYPOINT_TOKEN: {one_word}"),
        (Access(token="x" * 4097), "RALLYPOINT_TOKEN has more than 4096 characters"),
        (Access(ca_file=str(text)), f"{text} has no certificates in PEM format"),
        (Access(ca_file=str(binary)), f"{binary} has no certificates in PEM format"),
        (pair(own.key, own.key), f"{own.key} has no certificate in PEM format"),
        (pair(own.cert, own.cert), f"{own.cert} has no private key in PEM format"),
        (
            pair(own.cert, str(folder / "locked")),
            f"{folder / 'locked'} has a passphrase: store the key without one",
        ),
        (
            pair(own.cert, other.key),
            f"the key in {other.key} does not belong to the certificate in {own.cert}",
        ),
        (pair(own.cert, ""), "there is a client certificate without its key: name both files"),
        (pair("", own.key), "there is a client key without its certificate: name both files"),
    ]


def test_what_is_of_no_use_is_named(authority: Authority, tmp_path: Path) -> None:
    """In one line, without any content of the file."""
    lines: list[tuple[str, str]] = []
    for access, expected in broken(tmp_path, authority):
        with pytest.raises(AccessFailed) as failed:
            Credentials(access)
        lines.append((str(failed.value), expected))

    assert [one for one, _ in lines] == [expected for _, expected in lines]


@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_secret_that_everyone_can_write_is_refused(
    authority: Authority, tmp_path: Path, mode: int
) -> None:
    """A token and a key: another user would choose who this process is."""
    token, own = tmp_path / "token", authority.issue("own")
    token.write_text("secret")
    token.chmod(mode)
    Path(own.key).chmod(mode)
    with_key = Access(ca_file=authority.ca, cert_file=own.cert, key_file=own.key)

    for access, path in ((Access(token_file=str(token)), str(token)), (with_key, own.key)):
        with pytest.raises(AccessFailed) as failed:
            Credentials(access)
        assert str(failed.value) == (
            f"everyone can write {path}, which is a secret: run `chmod 600 {path}`"
        )


@pytest.mark.parametrize(("mode", "is_named"), [(0o644, True), (0o440, False), (0o600, False)])
def test_secret_of_a_mount_is_used(tmp_path: Path, mode: int, is_named: bool) -> None:
    """Kubernetes mounts secrets through links, with mode 0644, or 0440 for a group."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026/token").write_text("secret")
    (tmp_path / "..2026/token").chmod(mode)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "token").symlink_to("..data/token")
    access = Access(token_file=str(tmp_path / "token"))

    assert Credentials(access).metadata() == (("authorization", "Bearer secret"),)
    assert find_readable(access) == (access.token_file if is_named else "")


def test_token_is_never_shown() -> None:
    """Neither by the value, nor in a struct around it, nor by rich."""

    class Around(msgspec.Struct):
        access: Access

    access = Access(token="s3cret", token_file="/run/token")
    shown = [repr(access), str(access), repr(Around(access)), str(list(access.__rich_repr__()))]
    shown.append(repr(Credentials(Access(token="s3cret"))._contents))

    assert [text for text in shown if "s3cret" in text] == []
    assert repr(access) == "Access(token_file='/run/token', token='***')"


def test_variables_of_the_environment() -> None:
    """Each has its field. Any TLS file switches TLS on; RALLYPOINT_TLS=0 switches all of it off."""
    full = {
        "RALLYPOINT_TLS_CA": "ca",
        "RALLYPOINT_TLS_CERT": "cert",
        "RALLYPOINT_TLS_KEY": "key",
        "RALLYPOINT_TLS_SERVER_NAME": "name",
        "RALLYPOINT_TOKEN_FILE": "file",
        "RALLYPOINT_TOKEN": "word\n",
    }
    access = from_environment(full)

    assert access == Access(
        ca_file="ca",
        cert_file="cert",
        key_file="key",
        server_name="name",
        token_file="file",
        token="word",
    )
    assert access.uses_tls
    assert from_environment({"RALLYPOINT_TLS": "1"}) == Access(is_tls=True)
    assert from_environment(full | {"RALLYPOINT_TLS": "0"}) == Access(
        token_file="file", token="word"
    )
    assert from_environment({}) == PLAIN
    assert from_environment({"RALLYPOINT_TLS": "true"}) == Access(is_tls=True)
    with pytest.raises(AccessFailed, match=r"^RALLYPOINT_TLS is neither 1 nor 0$"):
        from_environment({"RALLYPOINT_TLS": "perhaps"})


def test_workers_get_paths_and_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute ones: a worker may run elsewhere."""
    monkeypatch.chdir(tmp_path)
    access = Access(
        ca_file="ca.pem", cert_file="/c", key_file="k", server_name="n", token_file="t", token="t"
    )

    assert to_environment(access) == {
        "RALLYPOINT_TLS": "1",
        "RALLYPOINT_TLS_CA": f"{tmp_path}/ca.pem",
        "RALLYPOINT_TLS_CERT": "/c",
        "RALLYPOINT_TLS_KEY": f"{tmp_path}/k",
        "RALLYPOINT_TLS_SERVER_NAME": "n",
    }
    assert to_environment(Access(token="t")) == {}
