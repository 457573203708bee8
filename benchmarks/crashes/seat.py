"""A coordinator at one address: it is killed, suspended, ended, and started again."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from harness.trial import MeasurementFailed, Process, Trial
from rallypoint.agent.machine.ports import PortReserver

END_S = 20.0


class Seat:
    """One coordinator; `process` is None before it is started, and after its end was seen."""

    def __init__(self, trial: Trial, ports: PortReserver, state: str) -> None:
        """Reserve a port: nothing else gets it while no coordinator lives.

        Args:
            trial: starts processes.
            ports: reserves ports.
            state: as for --state.
        """
        self._trial, self._state = trial, state
        self._port = ports.reserve()
        self.address = f"127.0.0.1:{self._port}"
        """Where it listens in every life."""
        self.process: Process | None = None
        self.is_frozen = False
        self.began_s = 0.0
        """time.monotonic() before its latest start."""

    def begin(self) -> None:
        """Start it; `await_listening` waits for it."""
        flags = [f"--port={self._port}", "--log-format=json", f"--state={self._state}"]
        self.began_s = time.monotonic()
        command = ["coordinator", "--host=127.0.0.1", *flags]
        self.process = self._trial.start(command, stdout=subprocess.PIPE)

    def await_listening(self) -> float:
        """Return how long after its start it listens, in seconds."""
        assert self.process is not None
        self._trial.read_address(self.process)
        return time.monotonic() - self.began_s

    def start(self) -> None:
        """Start it; return when it listens."""
        self.begin()
        self.await_listening()

    def has_ended(self) -> bool:
        """Return whether there is none."""
        return self.process is None or self.process.popen.poll() is not None

    def read_rss_mb(self) -> float:
        """Return its resident memory in MiB."""
        lines = Path(f"/proc/{self._popen().pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    def kill(self) -> None:
        """SIGKILL."""
        popen = self._popen()
        popen.kill()
        popen.wait()
        self.process = None

    def freeze(self) -> None:
        """Suspend it."""
        self._popen().send_signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let it continue."""
        self._popen().send_signal(signal.SIGCONT)
        self.is_frozen = False

    def terminate(self) -> None:
        """SIGTERM; `await_end` waits for its end."""
        self._popen().terminate()

    def await_end(self) -> None:
        """Wait until it has ended with 0."""
        assert self.process is not None
        try:
            code = self.process.popen.wait(END_S)
        except subprocess.TimeoutExpired as error:
            raise MeasurementFailed(f"the coordinator at {self.address} does not end") from error
        self.process = None
        if code != 0:
            raise MeasurementFailed(f"the coordinator at {self.address} ended with {code}")

    def revive(self) -> list[str]:
        """Bring it back if it is not there; return how it has ended by itself, if it has."""
        ended = []
        if self.is_frozen:
            self.thaw()
        if self.process is not None and self.has_ended():
            code = self.process.popen.returncode
            ended.append(f"the coordinator at {self.address} has ended with {code}")
        if self.has_ended():
            self.start()
        return ended

    def _popen(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.popen.poll() is not None:
            raise MeasurementFailed(f"the coordinator at {self.address} has ended by itself")
        return self.process.popen
