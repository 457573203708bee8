"""Reads the files of certificates, keys, tokens and rules, and never waits for another process.

A FIFO would block its reader until someone writes, and a device may never end. So only regular
files are opened; a symbolic link to one is fine.
"""

from __future__ import annotations

import os
import stat

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class FileUnusable(Exception):
    """A file cannot be read: one line that names it, without any content."""


def read_regular(path: str, bytes_max: int) -> tuple[bytes, os.stat_result]:
    """Return the content of a file, and its owner and mode as it was read.

    Args:
        path: of the file.
        bytes_max: most bytes that it may have.

    Raises:
        FileUnusable: it is not a regular file, too large, or cannot be read.
    """
    try:
        _require_regular(path, os.stat(path))
        # It may have been replaced since: then neither open nor read waits.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _require_regular(path, status)
            content = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise FileUnusable(f"cannot read {path}: {why}") from None
    if len(content) > bytes_max:
        raise FileUnusable(f"{path} is larger than {bytes_max // 1024} KiB")
    return content, status


def _require_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((kind for fits, kind in _KINDS if fits(status.st_mode)), "something else")
        raise FileUnusable(f"cannot read {path}: it is {kind}, not a regular file")
