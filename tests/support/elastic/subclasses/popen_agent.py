"""An agent for torch, written as the documentation of torch shows: "Extending the Agent".

It starts workers by `subprocess.Popen` and polls them. `python popen_agent.py FOLDER SCENARIO`
prints what came of it. Nothing of it knows Rallypoint: the test changes its imports, and no more.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

FAILS_AT_FIRST = """
import os, sys, time
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
time.sleep(0.2 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" else 200)
"""
RANK_0_FAILS = "import os, time; time.sleep(200 * int(os.environ['RANK'])); raise SystemExit(7)"
SCENARIOS = {
    "success": ("pass", 0),
    "failure": (RANK_0_FAILS, 0),
    "restart": (FAILS_AT_FIRST, 2),
    "exhausted": (RANK_0_FAILS, 1),
}
"""What the workers run, and how often they may be restarted."""


class PopenAgent(SimpleElasticAgent):
    """Workers are processes of `subprocess`; their ids are process ids."""

    def __init__(self, spec: WorkerSpec, folder: str) -> None:
        super().__init__(spec, exit_barrier_timeout=10)
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.calls: list[str] = []

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        restarts = spec.max_restarts - self._remaining_restarts
        self.calls.append(f"start {restarts} {worker_group.state.name}")
        for worker in worker_group.workers:
            env = {
                **os.environ,
                "RANK": str(worker.global_rank),
                "WORLD_SIZE": str(worker.world_size),
                "LOCAL_RANK": str(worker.local_rank),
                "MASTER_ADDR": str(worker_group.master_addr),
                "MASTER_PORT": str(worker_group.master_port),
                "TORCHELASTIC_RESTART_COUNT": str(restarts),
                "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            }
            command = [str(spec.entrypoint), *spec.args]
            self._processes[worker.local_rank] = subprocess.Popen(command, env=env)
        return {local_rank: process.pid for local_rank, process in self._processes.items()}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self.calls.append("stop")
        self._shutdown()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        if self.calls[-1] != "monitor":
            ids = {rank: process.pid for rank, process in self._processes.items()}
            same = ids == {worker.local_rank: worker.id for worker in worker_group.workers}
            self.calls += [f"ids are those that were returned: {same}", "monitor"]
        failed = {rank: code for rank, code in codes.items() if code}
        ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        if failed:
            failures = {
                ranks[rank]: ProcessFailure(rank, self._processes[rank].pid, code, "none")
                for rank, code in failed.items()
            }
            return RunResult(state=WorkerState.FAILED, failures=failures)
        if all(code == 0 for code in codes.values()):
            values = {rank: f"value of {rank}" for rank in ranks.values()}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        return RunResult(state=WorkerState.HEALTHY)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self.calls.append(f"shutdown {death_sig.name}")
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(death_sig)
        for process in self._processes.values():
            process.wait(timeout)


def main(folder: str, scenario: str) -> None:
    code, max_restarts = SCENARIOS[scenario]
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint="localhost:0",
        run_id=os.path.basename(folder),
        min_nodes=1,
        max_nodes=1,
        local_addr="127.0.0.1",
    )
    spec = WorkerSpec(
        role="trainer",
        local_world_size=2,
        rdzv_handler=get_rendezvous_handler(parameters),
        entrypoint=sys.executable,
        args=("-c", code),
        max_restarts=max_restarts,
        monitor_interval=0.05,
    )
    agent = PopenAgent(spec, folder)
    started = time.monotonic()
    result = agent.run()
    spec.rdzv_handler.shutdown()
    group = agent.get_worker_group()
    found = {
        "calls": agent.calls,
        "state": result.state.name,
        "is_failed": result.is_failed(),
        "values": result.return_values,
        "failures": {rank: failure.exitcode for rank, failure in result.failures.items()},
        "group": [group.state.name, group.group_rank, group.group_world_size, str(group.workers)],
        "left": [process.poll() is None for process in agent._processes.values()],
        "restarts_left": agent._remaining_restarts,
        "is_quick": time.monotonic() - started < 150,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
