"""Copies of a SQLite journal as a crash, a power cut or a bad disk would leave it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.codec.batches import decode_batch
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.sqlite.errors import explaining
from rallypoint.server.journal.sqlite.opening import open_files
from rallypoint.server.journal.sqlite.reading import read_contents

NAME = "journal.sqlite"
PAGE = 4_096
SECTOR = 512
SHM = Path("/dev/shm")


class Copy(Struct, frozen=True):
    """The files of a journal; empty bytes: the file is not there."""

    db: bytes = b""
    wal: bytes = b""
    head: bytes = b""

    def put(self, folder: Path) -> Path:
        """Write the files into a folder; return the path of the journal."""
        path = folder / NAME
        for suffix, content in (("", self.db), ("-wal", self.wal), ("-head", self.head)):
            file = folder / f"{NAME}{suffix}"
            file.unlink(missing_ok=True)
            if content:
                file.write_bytes(content)
        (folder / f"{NAME}-shm").unlink(missing_ok=True)
        return path


def copy_of(path: Path) -> Copy:
    """Return the files of a journal as they are now, open or not."""
    files = (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-head"))
    return Copy(*(file.read_bytes() if file.exists() else b"" for file in files))


@contextmanager
def fast_folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: thousands of copies are opened in it."""
    folder = Path(tempfile.mkdtemp(dir=SHM if SHM.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def load(path: Path) -> list[JournalRecord]:
    """Open a journal, load it, and close it, without the threads of the store.

    Raises:
        JournalFailed: when it is refused.
    """
    with explaining(path):
        files = open_files(path)
        try:
            contents = read_contents(path, files.connection, files.meta, files.mark)
        finally:
            files.close()
    return [record for payload in contents.payloads for record in decode_batch(payload).records]


def outcome(folder: Path, copy: Copy, *allowed: Sequence[JournalRecord], refusal: bool) -> str:
    """Open a copy; return how that ends, after checking that it may end so.

    Args:
        folder: where to put it.
        copy: the files.
        allowed: what a load may return.
        refusal: whether the start may be refused.

    Returns: "kept", or the text of the refusal.
    """
    path = copy.put(folder)
    try:
        found = load(path)
    except JournalFailed as error:
        assert refusal, f"refused: {error}"
        assert "\n" not in str(error) and str(path) in str(error)
        return str(error).removeprefix(str(path))
    assert found in [list(one) for one in allowed], f"{len(found)} records"
    return "kept"


def flipped(content: bytes, place: int, mask: int = 0xFF) -> bytes:
    """Return the content with one byte changed."""
    changed = bytearray(content)
    changed[place] ^= mask
    return bytes(changed)


def mixed(before: bytes, after: bytes, count: int) -> bytes:
    """Return a file of which so many bytes were overwritten when the process died."""
    return after[:count] + before[count:]


def torn(before: bytes, after: bytes, kept: Sequence[bool], unit: int) -> bytes:
    """Return a file of which only some units, such as sectors, were written."""
    old = before.ljust(len(after), b"\0")
    units = range(0, len(after), unit)
    return b"".join(
        (after if keep else old)[start : start + unit]
        for keep, start in zip(kept, units, strict=True)
    )
