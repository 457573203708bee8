"""Plug-ins that record events, installed as pip would install them."""

from __future__ import annotations

from pathlib import Path

MODULE = """
import logging, os, time

class Handler(logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())

class File(logging.FileHandler):
    def __init__(self):
        super().__init__(os.environ["HOOKS_FILE"])

class Failing(logging.Handler):
    def emit(self, record):
        raise OSError("no route to the log server")

class Polite(logging.Handler):
    def emit(self, record):
        try:
            raise OSError("no route to the log server")
        except OSError:
            self.handleError(record)

class Slow(logging.Handler):
    def emit(self, record):
        time.sleep(3_600)

instance = Handler()
def make(): return Handler()
def leave(): raise SystemExit(3)
nothing = None
def make_text(): return "text"
"""


def install(folder: Path, group: str, **points: str) -> dict[str, str]:
    """Install entry points of a group.

    Args:
        folder: of packages.
        group: of entry points.
        points: names of entry points, and what they name, such as "hooks_here:Handler".

    Returns:
        Variables that let an interpreter find the plug-ins.
    """
    name = f"hooks-{group.split('.')[0]}"
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{point} = {source}" for point, source in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]))
    (folder / "hooks_here.py").write_text(MODULE)
    return {"PYTHONPATH": str(folder)}
