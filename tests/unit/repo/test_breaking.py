"""The frozen contract: `make check` refuses what would break older programs, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
BUF = Path(sys.executable).with_name("buf")
FROZEN = REPOSITORY / "proto" / "v1.binpb"
LIMIT_S = 60


def find_breaks(folder: Path, file: str, old: str, new: str) -> str:
    """Return what `buf breaking` says about the contract with one change; empty: nothing."""
    proto = folder / "proto"
    shutil.copytree(REPOSITORY / "proto", proto, ignore=shutil.ignore_patterns("*.py*"))
    path = proto / "rallypoint" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file} has {text.count(old)} of {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")
    done = subprocess.run(
        [str(BUF), "breaking", str(proto), "--against", str(FROZEN)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout


AGENT = "v1/agent_service.proto"
NUMBER = "uint64 revision_applied = 16"
TEXT = "bool spare = 1;"


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (AGENT, NUMBER, "uint64 revision_applied = 96", "revision_applied"),
        (AGENT, TEXT, "", 'deleted without reserving the number "1"'),
        (AGENT, TEXT, "reserved 1;", 'deleted without reserving the name "spare"'),
        (AGENT, TEXT, "uint32 spare = 1;", "changed type"),
        (AGENT, TEXT, "repeated bool spare = 1;", "cardinality"),
        (AGENT, TEXT, "bool reserve = 1;", "changed name"),
        (
            AGENT,
            "RELEASED_REASON_DRAINED = 1;",
            "RELEASED_REASON_DRAINED = 2;",
            "RELEASED_REASON_DRAINED",
        ),
        (
            "v1/coordinator_service.proto",
            "rpc GetCoordinator(",
            "rpc GetOther(",
            "GetCoordinator",
        ),
    ],
    ids=[
        "number",
        "removal",
        "name",
        "type",
        "cardinality",
        "rename",
        "value",
        "rpc",
    ],
)
def test_breaking_change_is_refused(
    tmp_path: Path, file: str, old: str, new: str, words: str
) -> None:
    """A number, a name, a type or an RPC that older programs rely on."""
    assert words in find_breaks(tmp_path, file, old, new)


@pytest.mark.parametrize(
    "new",
    [
        'reserved 1; reserved "spare";',
        f"{TEXT} // New.\n bool new = 2;",
        TEXT,
    ],
    ids=["reserved", "addition", "nothing"],
)
def test_other_change_is_allowed(tmp_path: Path, new: str) -> None:
    """A field may go if its name and number are never used again, and fields may be added."""
    assert "" == find_breaks(tmp_path, AGENT, TEXT, new)
