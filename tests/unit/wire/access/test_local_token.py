"""The token of a coordinator inside an agent: only programs of the same user find it."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.base.private_files import NotPrivate
from rallypoint.wire import local_token
from rallypoint.wire.access import Access
from rallypoint.wire.local_token import (
    KeptToken,
    draw_token,
    find_ports,
    find_token,
    keep_token,
    resolve_local,
    with_local_token,
)

PORT, OTHER_PORT = 40_001, 40_002
STRANGER = 12_345


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of all places where a token may be kept."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path


@pytest.fixture
def kept(home: Path) -> Iterator[KeptToken]:
    """Return the token "drawn-token" of PORT, in the state folder."""
    kept = keep_token(PORT, "drawn-token")
    yield kept
    kept.remove()


def test_token_is_found_by_the_address(kept: KeptToken) -> None:
    """The one where the agent listens: another user may have that port of the others."""
    assert find_token(f"127.0.0.1:{PORT}") == "drawn-token"
    for endpoints in (
        f"localhost:{PORT}",
        f"[::1]:{PORT}",
        f"127.0.0.2:{PORT}",
        f"127.attacker.example:{PORT}",
        f"127.0.0.1:{OTHER_PORT}",
        f"head:{PORT}",
        f"head:{OTHER_PORT},127.0.0.1:{PORT}",
    ):
        assert find_token(endpoints) == ""


def test_name_of_this_host_stands_for_the_address(kept: KeptToken) -> None:
    """Where such a coordinator listens; other addresses stay as they are."""
    other = keep_token(OTHER_PORT, "of-ipv6", "::1")
    assert resolve_local(f"localhost:{PORT}") == f"127.0.0.1:{PORT}"
    assert resolve_local(f"localhost:{OTHER_PORT}") == f"[::1]:{OTHER_PORT}"
    assert find_token(f"[::1]:{OTHER_PORT}") == "of-ipv6"
    assert find_token(f"127.0.0.1:{OTHER_PORT}") == ""
    assert find_ports() == [PORT, OTHER_PORT]
    other.remove()

    assert find_ports() == [PORT]
    for endpoints in (f"localhost:{OTHER_PORT}", f"head:{PORT}", f"a:1,localhost:{PORT}"):
        assert resolve_local(endpoints) == endpoints


def test_token_is_for_its_user_alone(kept: KeptToken, home: Path) -> None:
    """File 0600, folder 0700, in the user's state folder."""
    assert kept.path.parent == home / "state/rallypoint/tokens"
    assert kept.path.name == f"{socket.gethostname()}-{PORT}"
    assert kept.path.stat().st_mode & 0o777 == 0o600
    assert kept.path.parent.stat().st_mode & 0o777 == 0o700


def test_token_is_gone_with_its_agent(home: Path) -> None:
    """Nothing is left."""
    kept = keep_token(PORT, "drawn-token")
    kept.remove()

    assert find_token(f"127.0.0.1:{PORT}") == ""
    assert list(kept.path.parent.iterdir()) == []


def test_token_of_a_dead_agent_counts_for_nothing_and_is_swept(home: Path) -> None:
    """Its lock has ended with it. Another program may have its port by now."""
    dead = keep_token(PORT, "of-the-dead")
    os.close(dead._fd)
    assert dead.path.exists()
    assert find_token(f"127.0.0.1:{PORT}") == ""
    living = keep_token(OTHER_PORT, "of-the-living")

    assert [one.name for one in living.path.parent.iterdir()] == [living.path.name]
    another = keep_token(PORT, "another")
    assert find_token(f"127.0.0.1:{OTHER_PORT}") == "of-the-living"
    for one in (living, another):
        one.remove()


def test_sweep_leaves_hosts_alone_whose_names_begin_alike(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of another host may not be seen where they share a home folder."""
    monkeypatch.setattr(local_token, "find_host_name", lambda: "gpu")
    folder = home / "state/rallypoint/tokens"
    folder.mkdir(parents=True, mode=0o700)
    theirs = ["gpu-1-50051", ".gpu-1-50051-77-0123abcd"]
    for name in theirs:
        (folder / name).write_text("theirs")
        os.utime(folder / name, (0, 0))
    kept = keep_token(PORT, "drawn-token")

    assert set(os.listdir(folder)) == {*theirs, kept.path.name}
    kept.remove()


def test_sweep_leaves_the_file_of_an_agent_that_has_just_begun(home: Path) -> None:
    """It is not locked yet; one that is old was never finished."""
    folder = home / "state/rallypoint/tokens"
    folder.mkdir(parents=True, mode=0o700)
    young, old = (folder / f".{socket.gethostname()}-{PORT}-77-{n:08x}" for n in range(2))
    for path in (young, old):
        path.touch()
    os.utime(old, (0, 0))
    kept = keep_token(PORT, "drawn-token")

    assert set(folder.iterdir()) == {young, kept.path}
    kept.remove()


def test_remove_leaves_the_file_of_a_later_agent(home: Path) -> None:
    """With a different name for the network, a container can have the same port."""
    first, second = keep_token(PORT, "first"), keep_token(PORT, "second")
    first.remove()

    assert find_token(f"127.0.0.1:{PORT}") == "second"
    second.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_not_believed(home: Path) -> None:
    """It could be made in a temporary folder to learn what a command sends, or to mislead it."""
    folder = home / "temporary" / f"rallypoint-{os.getuid()}" / "tokens"
    folder.mkdir(parents=True)
    path = folder / f"{socket.gethostname()}-{PORT}"
    path.write_text("planted")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert find_token(f"127.0.0.1:{PORT}") == "planted"
        os.chown(path, STRANGER, STRANGER)

        assert find_token(f"127.0.0.1:{PORT}") == ""


def test_token_is_kept_elsewhere_where_there_is_no_home(home: Path) -> None:
    """As the folder of a hosted coordinator; if others can change that too, nowhere."""
    (home / "state").touch()
    kept = keep_token(PORT, "drawn-token")
    parent = home / "temporary" / f"rallypoint-{os.getuid()}"
    assert kept.path.parent == parent / "tokens"
    assert find_token(f"127.0.0.1:{PORT}") == "drawn-token"
    kept.remove()
    parent.chmod(0o777)

    with pytest.raises(NotPrivate, match=f"everyone can write {parent}"):
        keep_token(PORT, "drawn-token")


def test_kept_token_counts_before_what_the_environment_names(kept: KeptToken) -> None:
    """That is for another coordinator; without a kept token it stays."""
    named = Access(token_file="/nowhere", token="named")

    assert with_local_token(named, f"127.0.0.1:{PORT}") == Access(token="drawn-token")
    assert with_local_token(named, f"127.0.0.1:{OTHER_PORT}") == named


def test_drawn_tokens_differ() -> None:
    """They are words that a header can hold."""
    one, other = draw_token(), draw_token()

    assert one != other
    assert len(one) >= 43 and one.isascii() and " " not in one
