"""Several coordinators of one store, each at its address: killed, suspended, ended and started."""

from __future__ import annotations

import select
import signal
import subprocess
import time
from dataclasses import dataclass

from harness.trial import MeasurementFailed, Process, Trial
from rallypoint.agent.machine.ports import PortReserver

LISTEN_S = 30.0
END_S = 20.0


@dataclass
class Seat:
    """One coordinator; `process` is None while there is none."""

    port: int
    process: Process | None = None
    is_frozen: bool = False

    @property
    def address(self) -> str:
        """Return where it listens, in every life."""
        return f"127.0.0.1:{self.port}"


class Seats:
    """All coordinators."""

    def __init__(self, trial: Trial, ports: PortReserver, state: str, count: int) -> None:
        """Prepare; `start` starts one."""
        self._trial = trial
        self._state = state
        self.all = [Seat(ports.reserve()) for _ in range(count)]

    @property
    def addresses(self) -> list[str]:
        """Return where they listen."""
        return [seat.address for seat in self.all]

    def at(self, address: str) -> Seat:
        """Return the one with an address."""
        return next(seat for seat in self.all if seat.address == address)

    def others(self, seat: Seat) -> list[Seat]:
        """Return all but one."""
        return [one for one in self.all if one is not seat]

    def start(self, seat: Seat) -> None:
        """Start it; return when it listens."""
        command = ["coordinator", "--host=127.0.0.1", f"--port={seat.port}", "--log-format=json"]
        seat.process = self._trial.start(
            [*command, f"--state={self._state}"], stdout=subprocess.PIPE
        )
        pipe = seat.process.popen.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], LISTEN_S)[0] or not pipe.read(1):
            raise MeasurementFailed(f"the coordinator at {seat.address} did not start")

    def kill(self, seat: Seat) -> None:
        """SIGKILL."""
        popen = self._popen(seat)
        popen.kill()
        popen.wait()
        seat.process = None

    def freeze(self, seat: Seat) -> None:
        """Suspend it."""
        self._popen(seat).send_signal(signal.SIGSTOP)
        seat.is_frozen = True

    def thaw(self, seat: Seat) -> None:
        """Let it continue."""
        self._popen(seat).send_signal(signal.SIGCONT)
        seat.is_frozen = False

    def terminate(self, seat: Seat) -> None:
        """SIGTERM; `await_end` waits for its end."""
        self._popen(seat).terminate()

    def await_end(self, seat: Seat) -> float:
        """Wait until it has ended with 0; return how long that took, in seconds."""
        assert seat.process is not None
        began_s = time.monotonic()
        try:
            code = seat.process.popen.wait(END_S)
        except subprocess.TimeoutExpired as error:
            raise MeasurementFailed(f"the coordinator at {seat.address} does not end") from error
        seat.process = None
        if code != 0:
            raise MeasurementFailed(f"the coordinator at {seat.address} ended with {code}")
        return time.monotonic() - began_s

    def revive(self) -> list[str]:
        """Bring back all that are not there; return those that have ended by themselves."""
        ended = []
        for seat in self.all:
            if seat.is_frozen:
                self.thaw(seat)
            if seat.process is not None and seat.process.popen.poll() is not None:
                code = seat.process.popen.returncode
                ended.append(f"the coordinator at {seat.address} has ended with {code}")
                seat.process = None
            if seat.process is None:
                self.start(seat)
        return ended

    def _popen(self, seat: Seat) -> subprocess.Popen[bytes]:
        if seat.process is None or seat.process.popen.poll() is not None:
            raise MeasurementFailed(f"the coordinator at {seat.address} has ended by itself")
        return seat.process.popen
