"""An agent that runs its workers itself, as torch's documentation shows: `own_workers.py OPTIONS`.

OPTIONS is JSON: fields of RendezvousParameters, `restarts`, and the command of the one worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from rallypoint.elastic import (
    ProcessFailure,
    RendezvousError,
    RendezvousParameters,
    RunResult,
    SignalException,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    get_rendezvous_handler,
)


class OwnAgent(SimpleElasticAgent):
    """Its worker is a process of `subprocess`."""

    _process: subprocess.Popen[bytes] | None = None

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        (worker,) = worker_group.workers
        env = {
            **os.environ,
            "RANK": str(worker.global_rank),
            "WORLD_SIZE": str(worker.world_size),
            "RALLYPOINT_ROUND": str(self._sit().number),
            "RALLYPOINT_NODE": str(worker_group.group_rank),
            "TORCHELASTIC_RESTART_COUNT": str(
                worker_group.spec.max_restarts - self._remaining_restarts
            ),
        }
        command = [str(worker_group.spec.entrypoint), *worker_group.spec.args]
        self._process = subprocess.Popen(command, env=env)
        return {0: self._process.pid}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._process is not None:
            self._process.send_signal(death_sig)
            self._process.wait(timeout)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._process is not None
        (worker,) = worker_group.workers
        code = self._process.poll()
        if code is None:
            return RunResult(WorkerState.HEALTHY)
        if code == 0:
            return RunResult(WorkerState.SUCCEEDED, {worker.global_rank: "done"})
        failure = ProcessFailure(0, self._process.pid, code, "")
        return RunResult(WorkerState.FAILED, failures={worker.global_rank: failure})


def main() -> None:
    options = json.loads(sys.argv[1])
    command, restarts = options.pop("command"), options.pop("restarts")
    handler = get_rendezvous_handler(RendezvousParameters(**options))
    spec = WorkerSpec(
        "trainer", 1, handler, entrypoint=command[0], args=tuple(command[1:]), max_restarts=restarts
    )
    try:
        run = OwnAgent(spec).run()
    except (RendezvousError, SignalException) as error:
        print(json.dumps({"raised": type(error).__name__, "text": str(error)}), flush=True)
        sys.exit(1)
    found = {"state": run.state.name, "failures": sorted(run.failures)}
    print(json.dumps({**found, "values": run.return_values}), flush=True)


if __name__ == "__main__":
    main()
