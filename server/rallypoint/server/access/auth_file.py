"""Reads the auth file again when it has changed. A bad one changes nothing."""

from __future__ import annotations

import os
import stat

from rallypoint.base.log import get_logger
from rallypoint.base.private_files import NotPrivate, require_private_place
from rallypoint.server.access.rules import Rules, RulesInvalid, parse_rules
from rallypoint.wire.files import FileUnusable, read_regular

log = get_logger()

FILE_BYTES_MAX = 1024 * 1024
BAD_LOOKS_MAX = 2
"""A file that is bad at this many looks in a row is not just being written."""


class AuthFileInvalid(Exception):
    """The file cannot be used: one line that names it."""


class AuthFile:
    """The rules that count, which are those of the file if that is valid."""

    def __init__(self, path: str, token: str = "") -> None:
        """Read the file.

        Args:
            path: of the file; empty: there is none.
            token: one more token with every role; empty: none.

        Raises:
            AuthFileInvalid: when it is not valid, or others can read or change it.
            RulesInvalid: when the token is too short.
        """
        self._path = path
        self._token = token
        self._seen = self._sign()
        self._bad_looks = 0
        self.rules = self._read()

    def look(self) -> None:
        """Take the rules of a file that has changed. It may wait for the file system."""
        seen = self._sign()
        if not self._path or (seen == self._seen and not self._bad_looks):
            return
        is_new = seen != self._seen
        self._seen = seen
        try:
            self.rules = self._read()
        except (AuthFileInvalid, RulesInvalid) as error:
            self._bad_looks = 1 if is_new else self._bad_looks + 1
            if self._bad_looks == BAD_LOOKS_MAX:
                log.warning("auth_file_rejected", why=str(error), effect="the rules before count")
            return
        self._bad_looks = 0
        log.info("auth_file_renewed", path=self._path, entries=self.rules.count)

    def _read(self) -> Rules:
        rules = _read_rules(self._path) if self._path else Rules()
        return rules.with_token(self._token) if self._token else rules

    def _sign(self) -> object:
        """Return something that differs when the file was replaced or changed."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        facts = (status.st_mode, status.st_uid)
        return status.st_mtime_ns, status.st_ino, status.st_size, *facts


def _read_rules(path: str) -> Rules:
    try:
        content, status = read_regular(path, FILE_BYTES_MAX)
        require_safe(path, status, os.geteuid())
        require_private_place(path)
        return parse_rules(content.decode())
    except NotPrivate as error:
        raise AuthFileInvalid(f"another user could replace {path}: {error}") from None
    except (FileUnusable, OSError) as unusable:
        raise AuthFileInvalid(str(unusable)) from None
    except (RulesInvalid, UnicodeDecodeError) as error:
        raise AuthFileInvalid(f"{path}: {error}") from None


def require_safe(path: str, status: os.stat_result, user: int) -> None:
    """Check that no one else can change a file, and that strangers cannot read it.

    Args:
        path: of the file.
        status: its owner and mode.
        user: the one that runs the coordinator, as a number.

    Raises:
        AuthFileInvalid: when someone else could let anyone in.
    """
    if status.st_uid not in (0, user):  # the owner can change the mode
        owner = f"belongs to user {status.st_uid}, who could change it"
        raise AuthFileInvalid(f"{path} {owner}: run `chown {user} {path}`")
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise AuthFileInvalid(f"others can read or change {path}: run `chmod 640 {path}`")
