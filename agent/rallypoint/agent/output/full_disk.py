"""Whether the file system of a worker's log is full: the error that ended it may be lost then."""

from __future__ import annotations

import os

LEFT_BYTES_MIN = 16_384
"""With less, a traceback may not fit any more."""


def describe_full_disk(path: str) -> str:
    """Return in words that nothing more fits below the folder of a file; "": it does.

    May block, as every file system may.
    """
    folder = os.path.dirname(path)
    try:
        facts = os.statvfs(folder)
    except OSError:
        return ""
    left = facts.f_bfree if os.geteuid() == 0 else facts.f_bavail
    if left * facts.f_frsize < LEFT_BYTES_MIN:
        return f"the disk of its log is full, and the end of what it printed is lost: {folder}"
    if facts.f_files and not facts.f_ffree:
        return f"the disk of its log has no room for another file: {folder}"
    return ""
