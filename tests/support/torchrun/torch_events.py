"""Prints the events of torch's own agent, as `--event-log-handler console` writes them.

There is one of a worker and one of the agent, which has run nothing. A separate program, because it
imports torch.
"""

from types import SimpleNamespace
from unittest.mock import Mock

from torch.distributed.elastic.agent.server.api import (
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
)
from torch.distributed.elastic.events.api import EventSource

handler = Mock()
handler.get_run_id.return_value, handler.get_backend.return_value = "job", "c10d"
spec = WorkerSpec("default", 1, handler, entrypoint="python", args=("train.py",))
group = WorkerGroup(spec)
group.group_rank, group.group_world_size = 0, 1  # type: ignore[assignment]  # by its own agent
agent = SimpleNamespace(_worker_group=group, _remaining_restarts=0, _total_execution_time=0)
for source, worker in (
    (EventSource.AGENT, None),
    (EventSource.WORKER, Worker(0, global_rank=0, role_rank=0, world_size=1, role_world_size=1)),
):
    event = SimpleElasticAgent._construct_event(agent, "SUCCEEDED", source, worker)  # type: ignore[arg-type]
    print(event.serialize())
