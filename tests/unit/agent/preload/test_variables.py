"""Variables that a forkserver has only for its imports, and those of a single worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.in_worker import PRELOAD
from rallypoint.agent.preload.command import Shape, find_difference, forkserver_environment

NAME = "PYTORCH_NVML_BASED_CUDA_CHECK"
IMPORT = """\
import json, os, sys
import rallypoint_checks
variables = rallypoint_checks.Variables()
while_importing = os.environ.get(sys.argv[1])
variables.end()
print(json.dumps([while_importing, os.environ.get(sys.argv[1])]))
"""


@pytest.mark.parametrize("own", [{}, {NAME: "0"}, {NAME: "1"}])
def test_imports_ask_for_devices_without_a_cuda_context(own: dict[str, str]) -> None:
    """A worker has its own value, or none."""
    environment = {"PATH": os.environ["PATH"], **own}
    done = subprocess.run(
        [sys.executable, "-S", "-c", IMPORT, NAME],
        cwd=PRELOAD,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout) == ["1", own.get(NAME)]


def test_worker_may_see_another_gpu() -> None:
    """With --virtual-local-rank each worker sees another one; nothing else may differ."""
    worker = {"HOME": "/", "RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}
    request = SpawnRequest(1, ("python", "x.py"), worker, "/tmp", stdout_fd=1, stderr_fd=2)
    first = {**worker, "RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}
    server = request._replace(env=forkserver_environment(first, {}))
    other = request._replace(env={**worker, "HOME": "/root"})

    assert find_difference(server, request, Shape(1, 0, None)) == ""
    assert find_difference(server, other, Shape(1, 0, None)) == "its environment differs: HOME"
