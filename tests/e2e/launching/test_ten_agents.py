"""Jobs without a name do not mix, although they share a machine and a coordinator."""

import pytest

from support.processes.commands import NODE_AGENT
from support.processes.world import OBEDIENT, PROMPT, World

AGENTS, WORKERS = 10, 2


@pytest.mark.long
def test_ten_agents_without_a_job_id_are_ten_jobs(world: World) -> None:
    """Each job has its own id, its own workers with ranks from 0, and its own master port.

    With one default name for all, they would be nodes of one job.
    """
    argv = [
        NODE_AGENT,
        f"--coordinator={world.target}",
        f"--nproc-per-node={WORKERS}",
        *PROMPT,
        OBEDIENT,
    ]
    agents = [world.start(f"agent {number}", argv) for number in range(AGENTS)]
    workers = world.mailbox.workers(AGENTS * WORKERS)
    jobs = {worker.env["TORCHELASTIC_RUN_ID"] for worker in workers}
    ranks = {(worker.env["TORCHELASTIC_RUN_ID"], worker.rank) for worker in workers}
    masters = {(worker.env["TORCHELASTIC_RUN_ID"], worker.env["MASTER_PORT"]) for worker in workers}

    assert len(jobs) == AGENTS
    assert ranks == {(job, rank) for job in jobs for rank in range(WORKERS)}
    assert {worker.env["WORLD_SIZE"] for worker in workers} == {str(WORKERS)}
    assert {worker.env["GROUP_WORLD_SIZE"] for worker in workers} == {"1"}
    assert len({worker.parent for worker in workers}) == AGENTS
    assert len(masters) == len({port for _, port in masters}) == AGENTS
    for worker in workers:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0] * AGENTS
    assert len(world.mailbox.started()) == AGENTS * WORKERS
    assert world.left() == []
