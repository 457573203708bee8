"""Run agents of torch, as torchrun does but in forks, with any rendezvous back end.

    python torch_agents.py '{"backend": …, "endpoint": …, "agents": [{"name": "a", …}, …]}'

The forks share the import of torch, which takes a second each otherwise. Standard output has a line
of JSON for each agent when it starts, with its pid, and one with its result, or with the exception
that ended it. An agent that is killed leaves only the first. Agents end with this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, launch_agent

from rallypoint.torch.rendezvous import register

PR_SET_PDEATHSIG = 1
FAILED, SUCCEEDED = 1, 0


def say(**fields: Any) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")  # whole: agents share the pipe


def run_agent(job: dict[str, Any], agent: dict[str, Any]) -> int:
    """Run one agent to its end, as torchrun does; return torchrun's exit code."""
    config = LaunchConfig(
        min_nodes=job["nodes"][0],
        max_nodes=job["nodes"][1],
        nproc_per_node=agent["workers"],
        run_id=agent.get("run_id", job["run_id"]),
        role=agent["role"],
        rdzv_backend=job["backend"],
        rdzv_endpoint=job["endpoint"],
        rdzv_configs=job["config"],
        max_restarts=job["max_restarts"],
        monitor_interval=0.05,
        local_addr="127.0.0.1",
    )
    args = ["-u", *job["script"], agent["name"]]
    try:
        values = launch_agent(config, sys.executable, args)
    except ChildFailedError as error:
        failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
        say(name=agent["name"], result="FAILED", failures=failures)
        return FAILED
    say(name=agent["name"], result="SUCCEEDED", ranks=sorted(values))
    return SUCCEEDED


def live(job: dict[str, Any], agent: dict[str, Any]) -> None:
    """Be the fork of an agent; does not return."""
    code = FAILED
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.environ.update(agent.get("env", {}))
        say(name=agent["name"], pid=os.getpid())
        code = run_agent(job, agent)
    except SystemExit as ended:
        code = int(ended.code or 0)
        say(name=agent["name"], exit=code)
    except BaseException as error:  # noqa: BLE001  # a fork ends here, whatever comes
        traceback.print_exc()
        say(name=agent["name"], error=type(error).__name__, text=str(error))
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    job = json.loads(sys.argv[1])
    register()  # torch before 2.6 looks for no back ends in other packages
    pids = []
    for agent in job["agents"]:
        pid = os.fork()
        if pid == 0:
            live(job, agent)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
