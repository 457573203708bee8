"""What stands for clocks, random numbers, the log and etcd's watches in the code of owners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rallypoint.server.etcd import lease
from rallypoint.server.fleet import life, ownership, standing
from rallypoint.server.journal.etcd import log as shard_log
from rallypoint.server.shell import beginning
from rallypoint.server.shell import clock as journal_clock
from sim.seeds.planting import Patch, patched
from sim.shards.client import SimClient, find_alarm, watch
from sim.shards.loop import MS_NS, Ticks
from sim.shells.loop import VirtualTime

if TYPE_CHECKING:
    from sim.shards.fleet import Fleet


class _Log:
    """Stands for a log: what is written there is a part of the history."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def info(self, event: str, **fields: Any) -> None:
        if not self._fleet.is_over:
            self._fleet.world.note("log", event, fields.get("shard"), fields.get("why"))

    warning = error = debug = info


class _Secrets:
    """Stands for the module `secrets`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def token_hex(self, count: int) -> str:
        return self._fleet.rng.randbytes(count).hex()


def _explain(job_id: object, error: Exception) -> str:
    raise AssertionError(f"{job_id} cannot be restored: {error!r}") from error


async def _explain_away(client: SimClient, why: str) -> str:
    return why


@contextmanager
def stand_ins(fleet: Fleet | None) -> Iterator[None]:
    """Replace what reaches the machine while the context is open; then end all processes."""
    if fleet is None:
        yield
        return
    log, secrets = _Log(fleet), _Secrets(fleet)
    began_ms = fleet.world.unix_ms() - fleet.world.clock.now_ms
    time = VirtualTime(Ticks(fleet.world.clock), began_ms * MS_NS)
    patches: tuple[Patch, ...] = (
        (beginning, "time", time),
        (beginning, "log", log),
        (beginning, "_explain", _explain),
        (journal_clock, "time", time),
        (shard_log, "secrets", secrets),
        (lease, "now_s", lambda: fleet.world.clock.now_ms / 1000),
        (ownership, "random", fleet.rng),
        (life, "secrets", secrets),
        (life, "random", fleet.rng),
        (life, "log", log),
        (life, "watch", watch),
        (standing, "log", log),
        (standing, "explain", _explain_away),
        (standing, "find_alarm", find_alarm),
    )
    with patched(*patches):
        try:
            yield
        finally:
            fleet.bury()
