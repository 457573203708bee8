"""The launchers that are compared: their command lines, and when each is ready for a failure."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from harness.trial import WAIT_LIMIT_S, MeasurementFailed, Process, Trial

MANY = "100000"
"""More restarts than any measurement uses."""
# No pauses or limits after repeated failures: each failure is treated like the first.
OUR_FLAGS = (
    *("--max-restarts", MANY, "--max-reformations", MANY, "--local-addr", "127.0.0.1"),
    *("--restart-backoff", "0", "--crash-loop", "0", "--quarantine-after", "0"),
    *("--log-format", "json"),
)
WARM = "torch,torch.distributed"
READY_LIMIT_S = 400.0
"""How long the standbys of an agent may take. They are made 10 s after a round has begun, one after
another, with what other programs leave of the processors."""
QUICK = (
    "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,join_timeout=120,"
    "close_timeout=1,heartbeat_timeout=2"
)
"""The least that the rendezvous of torch takes: whole seconds, and two missed beats."""
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
"""Workers get a separate store. In that of the agents, keys begin with the restart count, which
differs between an agent whose worker has failed and one that has only noticed a change."""
LOOK_S = 0.2
"""How often the log of an agent is read."""
_CHANGES = ("round_began", "standbys_ready", "standbys_ended")
"""Events after which a node has standbys or has none."""


class Launcher(StrEnum):
    WARM = "Rallypoint, warm"
    COLD = "Rallypoint, cold"
    TORCHRUN = "torchrun, default"
    TUNED = "torchrun, tuned"
    NVIDIA = "ft_launcher, tuned"


class Events:
    """The log of an agent."""

    def __init__(self, trial: Trial, agent: Process) -> None:
        self._trial, self._agent = trial, agent

    def read(self) -> list[dict[str, object]]:
        """Return its events so far, oldest first."""
        lines = self._trial.log(self._agent).read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line[:1] == "{" and line[-1:] == "}"]

    @property
    def is_ready(self) -> bool:
        """Whether the agent has standbys for the next round."""
        kinds = [event["event"] for event in self.read() if event["event"] in _CHANGES]
        return kinds[-1:] == ["standbys_ready"]

    def count_made(self) -> int:
        """Return how often all standbys were ready."""
        return sum(event["event"] == "standbys_ready" for event in self.read())

    def is_paced(self) -> bool:
        """Return whether standbys have been kept from running all the time."""
        return any(event["event"] == "standbys_paced" for event in self.read())

    def await_ready(self, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until it has.

        Raises:
            MeasurementFailed: it takes too long, or the agent has ended.
        """
        deadline_s = time.monotonic() + limit_s
        while not self.is_ready:
            if time.monotonic() > deadline_s:
                raise MeasurementFailed(f"{self._agent.name} has made no standbys")
            if select.select([self._agent.pidfd], [], [], LOOK_S)[0]:
                raise MeasurementFailed(f"{self._agent.name} has ended")


class Node:
    """A job of one node."""

    def __init__(self, trial: Trial, launcher: Launcher, script: Sequence[str], nproc: int) -> None:
        """Start the agent, with a built-in coordinator."""
        warm = ["--warm", WARM] if launcher is Launcher.WARM else []
        flags = [*OUR_FLAGS, "--warm-memory", "8GiB"] if warm else [*OUR_FLAGS]
        command = ["node-agent", "--standalone", "--nproc-per-node", str(nproc), *flags, *warm]
        self.launcher = launcher
        self.agent = trial.start([*command, *script])
        self.events = Events(trial, self.agent)

    def await_ready(self) -> None:
        """Wait until it has standbys, if it makes any."""
        if self.launcher is Launcher.WARM:
            self.events.await_ready()


class Crew:
    """The agents of one job of two nodes, and its workers."""

    def __init__(
        self, trial: Trial, launcher: Launcher, script: Sequence[str], nproc: int, nvidia: Path
    ) -> None:
        """Start what the agents need.

        Args:
            trial: owns the processes.
            launcher: which one.
            script: the workers' script with its arguments.
            nproc: workers of a node.
            nvidia: the Python of the environment with NVIDIA's launcher.
        """
        self.trial = trial
        self.launcher = launcher
        self.script = [*script]
        self.nproc = nproc
        self.nvidia = nvidia
        self.agents: list[Process] = []
        self._started = 0
        self.address = ""
        if self.is_ours:
            command = ["coordinator", "--host=127.0.0.1", "--port=0", "--log-format=json"]
            coordinator = trial.start(command, stdout=subprocess.PIPE)
            self.address = trial.read_address(coordinator)
        else:
            with socket.create_server(("127.0.0.1", 0)) as reserved:
                self.address = f"127.0.0.1:{reserved.getsockname()[1]}"

    @property
    def is_ours(self) -> bool:
        return self.launcher in (Launcher.WARM, Launcher.COLD)

    @property
    def job_id(self) -> str:
        return f"recovery-{os.getpid()}"

    def add(self) -> Process:
        """Start an agent; the third and later ones are spares."""
        self._started += 1
        agent = self.trial.start(self._command(f"n{self._started}"))
        self.agents.append(agent)
        return agent

    def _command(self, name: str) -> list[str]:
        common = ["--nnodes", "2", "--nproc-per-node", str(self.nproc)]
        if self.is_ours:
            where = ["--coordinator", self.address, "--job-id", self.job_id, "--node-name", name]
            warm = ["--warm", WARM] if self.launcher is Launcher.WARM else []
            return ["node-agent", *where, *common, *OUR_FLAGS, *warm, *self.script]
        common += ["--max-restarts", MANY, "--rdzv-id", "recovery", "--rdzv-backend", "c10d"]
        common += ["--rdzv-endpoint", self.address]
        # The wheel of the launcher is old, its torch is the same.
        folder = self.nvidia.parent
        match self.launcher:
            case Launcher.TORCHRUN:
                return ["torchrun", *common, *self.script]
            case Launcher.TUNED:
                quick = ["--rdzv-conf", QUICK, "--monitor-interval", "0.02"]
                quick += ["--shutdown-timeout", "1"]
                torchrun = str(Path(sys.executable).parent / "torchrun")
                return ["/usr/bin/env", OWN_STORE, torchrun, *common, *quick, *self.script]
            case _:
                quick = ["--rdzv-conf", QUICK, "--monitor-interval", "0.02"]
                quick += ["--workers-stop-timeout", "1", "--term-timeout", "1"]
                quick += ["--ft-rank-heartbeat-timeout", "60", "--ft-enable-nic-monitor", "false"]
                quick += ["--ft-restart-check-interval", "1"]
                return [str(folder / "ft_launcher"), *common, *quick, *self.script]

    def count_warm(self) -> int:
        """Return how many workers of the round that runs have been standbys."""
        count = 0
        for agent in self.agents:
            for event in reversed(Events(self.trial, agent).read()):
                if event["event"] == "warm_started":
                    count += int(str(event["workers"]))
                if event["event"] in ("warm_started", "standbys_ready"):
                    break
        return count

    def await_ready(self) -> None:
        """Wait until each agent has standbys, if it makes any.

        Raises:
            MeasurementFailed: it takes too long, or an agent has ended.
        """
        if self.launcher is Launcher.WARM:
            for agent in self.agents:
                Events(self.trial, agent).await_ready()

    def lose(self, agent: Process) -> None:
        """Reap an agent that was killed."""
        self.agents.remove(agent)
        agent.popen.wait()


def find_refusal(python: Path | None) -> str:
    """Return why NVIDIA's launcher cannot be measured with this Python; empty: it can."""
    if python is None:
        return "it was not installed"
    command = [str(python.parent / "ft_launcher"), "--help"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else re.sub(r"\s+", " ", lines[-1] if lines else "")


def describe_nvidia(python: Path) -> str:
    """Return the versions of NVIDIA's launcher and of its torch."""
    code = (
        "from importlib.metadata import version as v;"
        "print('nvidia-resiliency-ext', v('nvidia-resiliency-ext'), 'with torch', v('torch'))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def own_python() -> Path:
    """Return the Python that runs this benchmark."""
    return Path(sys.executable)
