"""Runs one node of one case, and writes down what came of it: `python run.py CASE FOLDER NODE`."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from pathlib import Path

from support.elastic.program import agents, exits, failures, launchers, scripts, starts, values
from support.elastic.program.case import CASES, Setup
from support.elastic.program.starts import describe_main

MODULES = (agents, exits, failures, launchers, scripts, starts, values)
"""All that have cases."""
LISTENER_TRIES = 600
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
"""In the text of a function, for example."""


def of_the_main_module(word: str) -> list[object]:
    """A worker's function that is no part of a module."""
    return [word, __name__, *describe_main()]


def wait_for_listener(endpoint: str) -> None:
    """Wait for node 0, which hosts the store of c10d; a coordinator listens already."""
    host, _, port = endpoint.rpartition(":")
    for _ in range(LISTENER_TRIES):
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"no process listens on {endpoint}")


def main(name: str, folder: str, node: str) -> None:
    """Run it."""
    endpoint = os.environ.get("CASE_ENDPOINT", "localhost:0")
    setup = Setup(Path(folder), endpoint, int(node))
    if setup.node > 0:
        wait_for_listener(endpoint)
    found = CASES[name].run(setup)
    text = ADDRESS.sub("0xN", json.dumps(found, indent=1))
    (setup.folder / f"result-{node}.json").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
