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
BECOME = """\
import json, os, sys
import rallypoint_main
environment = rallypoint_main.Environment()
environment.replace(json.loads(sys.argv[1]))
print(json.dumps(os.environ.get(sys.argv[2])))
"""


@pytest.mark.parametrize("own", [{}, {NAME: "0"}, {NAME: "1"}])
def test_imports_ask_for_devices_without_a_cuda_context(own: dict[str, str]) -> None:
    """A forkserver has it, and forks workers that do not, or that have another value."""
    worker = {"HOME": "/", "RANK": "0", **own}
    environment = forkserver_environment(worker, {}, (63, 62))
    request = SpawnRequest(1, ("python", "x.py"), worker, "/tmp", stdout_fd=1, stderr_fd=2)
    server = request._replace(env=environment)

    assert environment[NAME] == "1"
    assert find_difference(server, request, Shape(1, 0, None)) == ""


@pytest.mark.parametrize("own", [{}, {NAME: "0"}, {NAME: "1"}])
def test_worker_has_its_own_value(own: dict[str, str]) -> None:
    """After the fork it is what the worker would have without a forkserver."""
    worker = {"PATH": os.environ["PATH"], **own}
    environment = forkserver_environment(worker, {}, (63, 62)) | {"PYTHONPATH": ""}
    command = [sys.executable, "-S", "-c", BECOME, json.dumps(worker), NAME]
    done = subprocess.run(
        command, cwd=PRELOAD, env=environment, capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == own.get(NAME)


def test_worker_may_see_another_gpu() -> None:
    """With --virtual-local-rank each worker sees another one; nothing else may differ."""
    worker = {"HOME": "/", "RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}
    request = SpawnRequest(1, ("python", "x.py"), worker, "/tmp", stdout_fd=1, stderr_fd=2)
    first = {**worker, "RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}
    server = request._replace(env=forkserver_environment(first, {}, (63, 62)))
    other = request._replace(env={**worker, "HOME": "/root"})

    assert find_difference(server, request, Shape(1, 0, None)) == ""
    assert find_difference(server, other, Shape(1, 0, None)) == "its environment differs: HOME"
