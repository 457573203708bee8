"""What `rallypoint doctor` prints about the set-ups of `broken`, in real terminals.

`PYTHONPATH=tests python tests/support/operator/consultations.py` writes the texts again; look at
the difference.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.operator.broken import FILES_LIMIT, SET_UPS
from support.processes.terminal import Terminal

FOLDER = Path(__file__).parents[2] / "e2e" / "operator" / "consultations"
RALLYPOINT = str(Path(sys.executable).with_name("rallypoint"))
WIDTHS = (80, 200)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HOST_BEGINS = "this host\n"
# The lengths hardly differ, so that the lines break where they do for everyone.
_VARYING = (
    (r"(?<=localhost:)\d{5}|(?<=127\.0\.0\.1:)\d{5}|(?<=--port )\d{5}", "50051"),
    (r"(?<=answers in )\d+ ms", "1 ms"),
    (r"(?<=found in )\d+ ms", "1 ms"),
    (r"process \S+ \(\d+\)", "process python (4711)"),
    (r"Python [\d.]+, gRPC [\d.]+", "Python 3.11.7, gRPC 1.80.1"),
)


def consult(name: str, folder: Path, columns: int, **env: str) -> tuple[int, str]:
    """Return the exit code of the command, and what its terminal shows, with colours."""
    with SET_UPS[name](folder) as options:
        limit = FILES_LIMIT.get(name, 0)
        prefix = ("/bin/sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh") if limit else ()
        argv = [*prefix, RALLYPOINT, "doctor", *options]
        with Terminal(argv, _environment(env), folder, columns=columns) as terminal:
            code = terminal.wait()
        return code, terminal.shown().replace("\r\n", "\n")


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm-256color"}
    return {**kept, **extra}


def normalize(name: str, text: str) -> str:
    """Return what is the same everywhere: without colours, and without what this host has."""
    text = _COLOUR.sub("", text)
    for pattern, replacement in _VARYING:
        text = re.sub(pattern, replacement, text)
    before, _, after = text.partition(_HOST_BEGINS)
    if name in FILES_LIMIT:
        kept = after.partition("shared memory")[0].rpartition("\n")[0]
        return f"{before}{_HOST_BEGINS}{kept}\n…\n"
    return f"{before}{_HOST_BEGINS}…\n"


def transcribe(name: str, folder: Path) -> str:
    """Return the transcript of a set-up: its text in both widths."""
    parts = []
    for columns in WIDTHS:
        part = folder / str(columns)
        part.mkdir()
        _, text = consult(name, part, columns)
        parts.append(f"# {columns} columns\n\n{normalize(name, text)}")
    return "\n".join(parts)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for each in SET_UPS:
        with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as temporary:
            found = transcribe(each, Path(temporary))
        (FOLDER / f"{each}.txt").write_text(found, encoding="utf-8")
    print(f"{len(SET_UPS)} transcripts in {FOLDER}", file=sys.stderr)
