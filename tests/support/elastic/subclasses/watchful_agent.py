"""A subclass of torch's local agent that watches its workers, as users of torch write them.

It overrides the methods that the documentation lists, calls those of its base, and adds a variable
to the environment of the workers. `python watchful_agent.py FOLDER SCENARIO` prints what came of
it. Nothing of it knows Rallypoint: the test changes its imports, and no more.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler


class WatchfulAgent(LocalElasticAgent):
    """Notes what happens, in the thread that runs it, and stops workers that sleep."""

    def __init__(self, *args: Any, folder: Path, **options: Any) -> None:
        super().__init__(*args, **options)
        self._seen = folder / "seen"
        self._asleep = tuple(folder / f"asleep-{rank}" for rank in range(2))
        self.calls: list[str] = []
        self._thread = threading.current_thread()

    def _note(self, text: str) -> None:
        text = text if threading.current_thread() is self._thread else f"{text} in another thread"
        if not self.calls or self.calls[-1] != text:
            self.calls.append(text)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._note(f"rendezvous {worker_group.state.name}")
        super()._rendezvous(worker_group)
        os.environ["GIVEN_BY_THE_SUBCLASS"] = f"world of {worker_group.workers[0].world_size}"

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._note(f"start {[worker.global_rank for worker in worker_group.workers]}")
        for path in (self._seen, *self._asleep):  # of an earlier attempt
            path.unlink(missing_ok=True)
        ids: dict[int, Any] = super()._start_workers(worker_group)
        self._note(f"started {sorted(ids)}")
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        is_asleep = all(path.exists() for path in self._asleep)
        if result.state is WorkerState.HEALTHY and is_asleep:
            self._note("asleep")
            return RunResult(state=WorkerState.UNHEALTHY)
        self._note(f"monitor {result.state.name}")
        self._seen.touch()
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._note(f"restart, {self._remaining_restarts} left")
        super()._restart_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._note(f"stop {worker_group.state.name}")
        super()._stop_workers(worker_group)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._note(f"shutdown {death_sig.name}")
        super()._shutdown(death_sig, timeout)


@record
def train(way: str, folder: str) -> list[Any]:
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    while not (Path(folder) / "seen").exists():  # the agent has seen that they are HEALTHY
        time.sleep(0.01)
    if way == "raise" or (way == "raise at first" and count == 0):
        raise ValueError(f"attempt {count}")
    if way == "sleep" and count == 0:
        (Path(folder) / f"asleep-{os.environ['RANK']}").touch()
        time.sleep(200)
    return [int(os.environ["RANK"]), count, os.environ["GIVEN_BY_THE_SUBCLASS"]]


SCENARIOS = {
    "success": ("return", 0),
    "failure": ("raise", 0),
    "restart": ("raise at first", 1),
    "unhealthy": ("sleep", 1),
    "unhealthy for good": ("sleep", 0),
}
"""What the workers do, and how often they may be restarted."""


def main(folder: str, scenario: str) -> None:
    way, max_restarts = SCENARIOS[scenario]
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
        entrypoint=train,
        args=(way, folder),
        max_restarts=max_restarts,
        monitor_interval=0.05,
    )
    agent = WatchfulAgent(
        spec,
        DefaultLogsSpecs(log_dir=folder, redirects=Std.ERR),
        folder=Path(folder),
        exit_barrier_timeout=10,
    )
    result = agent.run()
    spec.rdzv_handler.shutdown()
    group = agent.get_worker_group()
    messages = {str(failure.message["message"]) for failure in result.failures.values()}
    found = {
        "calls": agent.calls,
        "state": result.state.name,
        "is_failed": result.is_failed(),
        "values": result.return_values,
        "failures": sorted(messages),
        "group": [group.state.name, group.group_rank, group.group_world_size, str(group.workers)],
        "restarts_left": agent._remaining_restarts,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
