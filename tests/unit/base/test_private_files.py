"""Who else could change or replace a file: the checks of ssh, made of our files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from rallypoint.base.private_files import (
    NotPrivate,
    find_replacer,
    make_private_folder,
    open_private,
)

STRANGER = 12_345
"""The number of no user."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """Return an access list as the kernel keeps it, of (kind, rights, number of who)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in entries)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder whose parents are private, and that others may search."""
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    for one in (tmp_path, folder.parent, folder):
        one.chmod(0o755)
    return folder


def test_private_place_has_no_replacer(place: Path) -> None:
    """Also one that does not exist yet, is on the way of dots, or is below a sticky folder."""
    place.parent.chmod(0o1777)

    assert find_replacer(place) == ""
    assert find_replacer(place / "new/file") == ""
    assert find_replacer(f"{place}/../b/./file") == ""


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_folder_of_all_lets_everyone_replace_what_is_below(place: Path, mode: int) -> None:
    """However far above it is."""
    place.parent.chmod(mode)

    assert find_replacer(place / "c/d") == f"everyone can write {place.parent}"


@needs_root
def test_folder_of_a_group_counts_as_open_unless_the_group_is_private(place: Path) -> None:
    """Systems that give each user a group of the same number also let it write."""
    place.chmod(0o775)
    assert find_replacer(place / "x") == ""
    os.chown(place, 0, STRANGER)

    assert find_replacer(place / "x") == f"group {STRANGER} can write {place}"


@needs_root
def test_folder_of_another_user_is_that_user_s_to_change(place: Path) -> None:
    """Its owner can change its mode."""
    os.chown(place.parent, STRANGER, 0)

    assert find_replacer(place) == f"{place.parent} belongs to user {STRANGER}"


@needs_root
def test_link_of_another_user_is_not_followed(place: Path) -> None:
    """In a folder such as /tmp anyone can make one before."""
    link = place.parent / "link"
    link.symlink_to(place)
    assert find_replacer(link / "x") == ""
    os.lchown(link, STRANGER, STRANGER)

    assert find_replacer(link / "x") == f"{link} is a link of user {STRANGER}"


def test_what_a_link_leads_to_is_looked_at(place: Path) -> None:
    """A private folder may hold a link to an open one, absolute or not."""
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    (place / "absolute").symlink_to(place / "open")
    (place / "relative").symlink_to("../b/open")

    for name in ("absolute", "relative"):
        assert find_replacer(place / name / "x") == f"everyone can write {place / 'open'}"


def test_loop_of_links_has_an_end(place: Path) -> None:
    """It is an error of the system, as when the file is opened."""
    (place / "loop").symlink_to("loop")

    with pytest.raises(OSError, match="Too many levels"):
        find_replacer(place / "loop/x")


def test_folder_is_made_with_its_parents_for_this_user_alone(place: Path) -> None:
    """Whatever the umask is."""
    before = os.umask(0)
    try:
        make_private_folder(place / "x/y")
    finally:
        os.umask(before)

    assert [one.stat().st_mode & 0o777 for one in (place / "x", place / "x/y")] == [0o700] * 2


@needs_root
def test_folder_that_another_user_has_made_is_refused(place: Path) -> None:
    """A link too, even one's own."""
    (place / "theirs").mkdir()
    os.chown(place / "theirs", STRANGER, STRANGER)
    (place / "link").symlink_to(place)

    with pytest.raises(NotPrivate, match=f"theirs belongs to user {STRANGER}"):
        make_private_folder(place / "theirs")
    with pytest.raises(NotPrivate, match="link is not a folder"):
        make_private_folder(place / "link")


@needs_root
def test_exposed_folder_is_made_unless_it_is_another_user_s(place: Path) -> None:
    """Its caller has to accept who can write what is above it, and no more."""
    place.chmod(0o777)
    with pytest.raises(NotPrivate, match="everyone can write"):
        make_private_folder(place / "x")
    make_private_folder(place / "x", may_be_exposed=True)
    assert (place / "x").stat().st_mode & 0o777 == 0o700
    os.chown(place / "x", STRANGER, STRANGER)

    with pytest.raises(NotPrivate, match=f"x belongs to user {STRANGER}"):
        make_private_folder(place / "x", may_be_exposed=True)


def test_file_is_opened_for_this_user_alone(place: Path) -> None:
    """A file that is made has mode 0600; a link and a file that everyone can write are refused."""
    os.close(open_private(place / "new", os.O_RDWR | os.O_CREAT))
    (place / "link").symlink_to("new")
    (place / "open").touch()
    (place / "open").chmod(0o666)
    os.mkfifo(place / "pipe")

    assert (place / "new").stat().st_mode & 0o777 == 0o600
    with pytest.raises(NotPrivate, match="link is a link"):
        open_private(place / "link", os.O_RDWR | os.O_CREAT)
    with pytest.raises(NotPrivate, match=r"everyone can write .*open"):
        open_private(place / "open", os.O_RDWR)
    with pytest.raises(OSError, match="Invalid argument"):
        open_private(place / "pipe", os.O_RDWR)


@needs_root
def test_file_of_another_user_is_not_opened(place: Path) -> None:
    """Whatever its mode is: its owner can read what is written."""
    (place / "theirs").touch(0o600)
    os.chown(place / "theirs", STRANGER, STRANGER)

    with pytest.raises(NotPrivate, match=f"theirs belongs to user {STRANGER}"):
        open_private(place / "theirs", os.O_RDWR | os.O_CREAT)


def test_access_list_can_name_another_writer(place: Path) -> None:
    """The rights of the group, which is the user's own, are then the bound of what it grants."""
    path = place / "token"
    path.write_text("t")
    path.chmod(0o660)
    os.close(open_private(path, os.O_RDONLY))
    none = 0xFFFFFFFF
    entries = ((1, 6, none), (2, 6, STRANGER), (4, 0, none), (0x10, 6, none), (0x20, 0, none))
    try:
        os.setxattr(path, "system.posix_acl_access", access_list(*entries))
    except OSError:
        pytest.skip("this file system has no access lists")

    with pytest.raises(NotPrivate, match=r"^a user of its access list can write "):
        open_private(path, os.O_RDONLY)


def test_absolute_path_needs_no_working_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be gone: a batch job's, or one in a folder that is cleaned."""
    gone = place / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert find_replacer(place / "file") == ""
    with pytest.raises(FileNotFoundError):
        find_replacer("file")
