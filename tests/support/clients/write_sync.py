"""Writes the blocking client from the asyncio one: `make client`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "client" / "rallypoint" / "client"
HEAD = "# Generated from {} by `make client`. Do not edit.\n"
WORDS = {
    r"\b(async|await) ": "",
    r"\b__a(enter|exit|iter|next)__\b": r"__\1__",
    r"\b(Stop)Async|Async(Iterator|Client)\b": r"\1\2",
    r"\baio_(lists|transport)\b": r"sync_\1",
    r"\b_close\b": "close",  # of a watch, which one thread may close while another reads it
}
TEXTS = {
    "aio.py": {
        "The asyncio client:": "The blocking client:",
        "a store, in one event loop.": "a store. Threads may share it.",
        "class Client:": "class Client(Reports):",
        "sync_transport import Transport": "sync_transport import Reports, Transport",
    },
    "aio_lists.py": {
        "the asyncio client": "the blocking client",
        "happens later is not missed.": "happens later is not missed. One\n    thread reads it; "
        "any may close it.",
    },
}
"""What differs otherwise, by module."""


def write_sync(name: str) -> str:
    """Return the blocking form of an asyncio module.

    Args:
        name: one of `TEXTS`.

    Raises:
        ValueError: it lacks one of its texts.
    """
    text = (FOLDER / name).read_text(encoding="utf-8")
    for pattern, word in WORDS.items():
        text = re.sub(pattern, word, text)
    for old, new in TEXTS[name].items():
        if text.count(old) != 1:
            raise ValueError(f"{name} has {text.count(old)} of {old!r}")
        text = text.replace(old, new)
    for command in (["check", "--fix-only", "--unsafe-fixes", "--select=I,UP028"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet"]
        ruff += ["--stdin-filename", str(path_of(name)), "-"]
        done = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return HEAD.format(name) + text


def path_of(name: str) -> Path:
    """Return where the blocking form of an asyncio module is."""
    return FOLDER / name.replace("aio", "sync")


if __name__ == "__main__":
    for module in TEXTS:
        path_of(module).write_text(write_sync(module), encoding="utf-8")
