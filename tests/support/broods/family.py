"""The workers of one agent, the first of which has a brood: see workers/brood.py."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.processes.mailbox import Worker
from support.processes.processes import Witness
from support.processes.world import WORKERS, World

GRACE_S, ALLOWED_S = 0.2, 2.0
BROOD = ("breeder", "closed", "comet", "daemon", "scrubbed", "session")
SCRIPT = (str(WORKERS / "brood.py"),)


@dataclass(frozen=True, slots=True)
class Family:
    """The workers of one agent, the first of which has a brood."""

    parent: Worker
    """It dies of signals. The other one ignores them."""
    lock: Path
    """The file that the brood has locked."""
    pids: frozenset[int]
    """Helper, workers and brood, but for the comet, which changes all the time."""
    witness: Witness

    def await_end(self, wait: Callable[[], int]) -> int:
        """Check that nothing is left in time, the agent included; return the exit code."""
        end_s = time.monotonic() + GRACE_S + ALLOWED_S
        exit_code = wait()

        assert is_lifted(self.lock, end_s - time.monotonic())
        assert self.witness.await_deaths(*self.pids) == []
        assert time.monotonic() < end_s
        return exit_code


def find_family(world: World, witness: Witness, job_id: str, round: int = 1) -> Family:
    """Return the family of a job whose workers have all started in this round."""
    first, second = sorted(
        (
            one
            for one in world.mailbox.started()
            if one.env["RALLYPOINT_JOB_ID"] == job_id and one.round == round
        ),
        key=lambda worker: worker.rank,
    )
    born = [said for said in world.mailbox.said("brood") if said.fields["parent"] == first.pid]
    brood = {said.fields["name"]: said.pid for said in born}
    lock = world.folder / f"brood-{job_id}"

    assert (first.rank, second.rank) == (0, 1)
    assert sorted(brood) == sorted(BROOD)
    assert not is_lifted(lock, 0)
    del brood["comet"]
    pids = frozenset({first.parent, first.pid, second.pid, *brood.values()})
    witness.watch(*pids)
    return Family(first, lock, pids, witness)


def is_lifted(lock: Path, limit_s: float) -> bool:
    """Wait until no process holds the lock."""

    def wait() -> None:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(max(0.1, limit_s))
    return not waiter.is_alive()
