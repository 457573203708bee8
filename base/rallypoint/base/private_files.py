"""Who else could change or replace a file: the checks that ssh makes.

Files and folders belong to root or this user. No other user can write them, except that a folder
may be one in which no user can remove what belongs to others (sticky). That holds for all folders
above and for each link on the way: a user who can rename one of them chooses what is found there. A
folder on a read-only mount, such as a secret of Kubernetes, cannot be changed through its path.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
LINKS_MAX = 40
"""Links that a path may lead through; Linux follows as many."""


class NotPrivate(PermissionError):
    """Another user could change or replace a file. The text says which, and why."""

    def __init__(self, why: str) -> None:
        """Keep the reason, half a sentence that names a path."""
        super().__init__(errno.EPERM, why)

    def __str__(self) -> str:
        """Return the reason alone."""
        return str(self.strerror)


def find_replacer(path: str | Path, *, owners_only: bool = False) -> str:
    """Return how another user could replace what is at a path, half a sentence; empty: no user can.

    What does not exist yet is made in the last folder that does.

    Args:
        path: of a file or folder.
        owners_only: folders that other users can write, but do not own, count as private.

    Raises:
        OSError: the path cannot be looked at.
    """
    for place, status in _walk(path):
        if stat.S_ISLNK(status.st_mode):
            if not is_trusted(status.st_uid):
                return f"{place} is a link of user {status.st_uid}"
        elif stat.S_ISDIR(status.st_mode):
            if not is_trusted(status.st_uid):
                return f"{place} belongs to user {status.st_uid}"
            if not owners_only and (writer := _find_folder_writer(place, status)):
                return f"{writer} can write {place}"
    return ""


def _walk(path: str | Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all folders and links that a path leads through, as far as it exists, in order."""
    current, links = "/", 0
    # The working folder may be gone; then only paths that need it have none.
    whole = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    rest = os.fspath(whole).split("/")[::-1]
    yield current, os.lstat(current)
    while rest:
        name = rest.pop()
        if name == "..":
            current = os.path.dirname(current)
        if name in ("", ".", ".."):
            continue
        place = os.path.join(current, name)
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            return
        yield place, status
        if not stat.S_ISLNK(status.st_mode):
            current = place
            continue
        links += 1
        if links > LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = os.readlink(place)
        rest += target.split("/")[::-1]
        if target.startswith("/"):
            current = "/"


def require_private_place(path: str | Path, *, owners_only: bool = False) -> None:
    """Check that no other user can replace what is at a path; `find_replacer` has the arguments.

    Raises:
        NotPrivate: another user can.
        OSError: the path cannot be looked at.
    """
    if why := find_replacer(path, owners_only=owners_only):
        raise NotPrivate(why)


def make_private_folder(folder: Path, *, may_be_exposed: bool = False) -> None:
    """Make a folder, and those above it, that only this user can use and replace.

    Args:
        folder: its path.
        may_be_exposed: others who can write a folder above it can replace it.

    Raises:
        NotPrivate: another user has made it, or can replace it.
        OSError: the system refuses.
    """
    require_private_place(folder.parent, owners_only=may_be_exposed)
    for one in (*reversed(folder.parents), folder):  # `parents=True` would use the umask above it
        one.mkdir(FOLDER_MODE, exist_ok=True)
    status = folder.lstat()  # not of what a link leads to
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivate(f"{folder} is not a folder")
    if status.st_uid != os.geteuid():
        raise NotPrivate(f"{folder} belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        folder.chmod(FOLDER_MODE)
    require_private_place(folder, owners_only=may_be_exposed)


def open_private(path: Path, flags: int) -> int:
    """Open a regular file that no other user can write; return its descriptor.

    A link is not followed, and nothing waits for the other end of a pipe. A file that is made has
    mode 0600.

    Args:
        path: of the file.
        flags: of `os.open`; truncation belongs after the checks.

    Raises:
        NotPrivate: it is a link, or another user can write it.
        OSError: it is something else than a file, or the system refuses.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise NotPrivate(f"{path} is a link") from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        if not is_trusted(status.st_uid):
            raise NotPrivate(f"{path} belongs to user {status.st_uid}")
        if why := find_writer(status, fd):
            raise NotPrivate(f"{why} can write {path}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def find_writer(status: os.stat_result, place: int | str | Path) -> str:
    """Return who can write a file beside its owner, a few words; empty: none.

    Args:
        status: of the file.
        place: its descriptor or path.
    """
    if status.st_mode & stat.S_IWOTH:
        return "everyone"
    if not status.st_mode & stat.S_IWGRP:
        return ""
    if not _is_private_group(status.st_gid):
        return f"group {status.st_gid}"
    # With an access list, the rights of the group bound those of all whom it names.
    return "a user of its access list" if _has_access_list(place) else ""


def _has_access_list(place: int | str | Path) -> bool:
    try:
        return bool(os.getxattr(place, "system.posix_acl_access"))
    except OSError:  # it has none, or its file system knows none
        return False


def is_trusted(owner: int) -> bool:
    """Return whether a file of this user may be relied on: root's, and one's own."""
    return owner in (0, os.geteuid()) or (owner == _OVERFLOW_USER and _hides_root())


_OVERFLOW_USER = 65534
"""As whom the kernel shows users that a user namespace does not map."""
_EVERY_USER = ["0", "0", "4294967295"]
"""The map of users outside of such namespaces."""


def _hides_root() -> bool:
    """Return whether root is among the users that this process cannot tell apart."""
    try:
        return Path("/proc/self/uid_map").read_text().split() != _EVERY_USER
    except OSError:
        return False


def _is_private_group(group: int) -> bool:
    """Return whether only root and this user are in a group, as far as its number tells.

    Many systems give each user a group of the same number, and a umask that lets it write.
    """
    return group in (0, os.geteuid())


def _find_folder_writer(folder: str, status: os.stat_result) -> str:
    writer = "" if status.st_mode & stat.S_ISVTX else find_writer(status, folder)
    return "" if writer and os.statvfs(folder).f_flag & os.ST_RDONLY else writer
