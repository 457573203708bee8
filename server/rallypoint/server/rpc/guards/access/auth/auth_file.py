"""Reads the auth file again when it has changed. A bad one changes nothing."""

from __future__ import annotations

import os
import stat

from rallypoint.base.log import get_logger
from rallypoint.server.rpc.guards.access.auth.rules import Rules, RulesInvalid, parse_rules

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
            AuthFileInvalid: when it is not valid, or others can read it.
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
        return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode


def _read_rules(path: str) -> Rules:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise AuthFileInvalid(f"cannot read {path}: {why}") from None
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise AuthFileInvalid(f"others can read or change {path}: run `chmod 640 {path}`")
    if len(content) > FILE_BYTES_MAX:
        raise AuthFileInvalid(f"{path} is larger than {FILE_BYTES_MAX // 1024} KiB")
    try:
        return parse_rules(content.decode())
    except (RulesInvalid, UnicodeDecodeError) as error:
        raise AuthFileInvalid(f"{path}: {error}") from None
