"""The helper of an agent and its workers: processes that exist as long as the rules say.

`Helper` has the requests of `WorkerHost` and sends the same events in the same order: each request
takes a moment, no event overtakes another, and Clean follows the exits of all workers. A frozen one
does and says nothing until it thaws; its workers continue.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rallypoint.agent.helper.events import (
    ORPHANS,
    Blocked,
    Clean,
    Exited,
    HelperLost,
    HostEvent,
    Spawned,
    SpawnFailed,
    SpawnRequest,
)
from rallypoint.agent.helper.host import HostClosed
from sim.shells.loop import Loop
from sim.world.clock import Timer

if TYPE_CHECKING:
    from sim.shells.node import AgentProcess
    from sim.shells.world import World

SIGKILL = 9
HELPER_S_MAX = 0.005
"""How long a request to the helper takes, and an event of it."""
DIES_S_MAX = 0.06
"""How long a worker takes to end after SIGTERM."""
RECOVERY_S = 0.05
UNBLOCKED_S = 6.0
"""What survives SIGKILL is gone after this."""

GroupKey = tuple[str, str, str, str, str, int]
"""Job, run, round, address and port of the store, and epoch: no two rounds have the same.

A coordinator without memory may give a number again that no agent remembers, in a later epoch.
"""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process, with the environment that it was started with."""

    pid: int
    worker_id: int
    owner: AgentProcess
    env: dict[str, str]
    group: Group
    is_alive: bool = True
    is_signalled: bool = False
    """The agent has signalled it, or killed it."""
    signalled_ns: int | None = None
    """When its helper first signalled or killed it."""
    is_blocked: bool = False
    """It survives SIGKILL for a while."""
    exit_code: int | None = None
    signum: int | None = None

    def note_signal(self, at_ns: int) -> None:
        """Note that its helper signals or kills it."""
        self.is_signalled = True
        if self.signalled_ns is None:
            self.signalled_ns = at_ns

    @property
    def rank(self) -> int:
        return int(self.env["RANK"])

    @property
    def is_success(self) -> bool:
        return self.exit_code == 0 and not self.is_signalled


@dataclass(slots=True, eq=False)
class Group:
    """The workers of one round, wherever they run."""

    key: GroupKey
    world_size: int
    nodes: int
    restart_count: int
    workers: list[Worker] = field(default_factory=list)
    """In the order of their starts."""
    has_joined: bool = False
    """All of them have run at the same time."""
    is_broken: bool = False
    """One of them failed by itself."""
    has_died: bool = False
    """The fence killed one of them; its agent may report that as a failure."""

    @property
    def job_id(self) -> str:
        return self.key[0]

    @property
    def round(self) -> int:
        return int(self.key[2])

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_alive]


class Helper:
    """Stands for `WorkerHost`."""

    def __init__(self, world: World, owner: AgentProcess) -> None:
        self.world = world
        self.owner = owner
        self.pid = world.next_pid()
        self.living: list[Worker] = []
        self.is_closed = False
        self._on_event: Callable[[HostEvent], None] | None = None
        self._requested: set[int] = set()
        """Workers of which the agent does not know yet whether they started."""
        self._pids: dict[int, int] = {}
        """Pids of the workers that live, as far as the agent knows."""
        self._asked_ns: dict[int, int] = {}
        """When the agent first asked to signal each of them."""
        self._ask_ns = 0
        self._tell_ns = 0
        self._sweeps: int | None = None
        """Token of the sweep that waits for the last process."""
        self._fence: Timer | None = None
        self._is_fenced = False
        self.is_frozen = False
        self._left: list[Callable[[], None]] = []
        """What it does when it thaws."""
        self._unreaped: dict[int, Worker] = {}
        """Workers that have ended since it stands still, by worker id."""
        self.is_silent = False
        """A ping has no answer."""
        self.fenced_ms: int | None = None

    def attach(self, on_event: Callable[[HostEvent], None]) -> None:
        self._on_event = on_event

    @property
    def is_replaceable(self) -> bool:
        return True

    @property
    def takes_requests(self) -> bool:
        return not self.is_closed

    def freeze(self) -> None:
        """Let it stand still."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Let it continue."""
        self.is_frozen = self.is_silent = False
        self._unreaped.clear()
        left, self._left = self._left, []
        for call in left:
            if not self.is_closed:
                call()

    def ping(self) -> None:
        self.is_silent = self.is_frozen

    def kill(self) -> None:
        self.world.note("helper killed", self.pid)
        self.lose()

    def replacement(self) -> Helper:
        return self.world.replace_helper(self.owner.loop)

    # --- requests ---

    def spawn(self, request: SpawnRequest) -> None:
        if self.is_closed:
            self.world.rules.start_failed(self.owner)
        held = self.owner.agent.state.held
        epoch = 0 if held is None else held.order.header.epoch
        self._ask(lambda: self._spawn(request, epoch))
        self._requested.add(request.worker_id)

    def signal(self, signum: int, worker_ids: None = None, *, alone: bool = False) -> None:
        self._ask(lambda: self._signal(signum, alone=alone))
        if not alone:
            self._note_asked()

    def sweep(self, token: int, limit_ms: int) -> None:
        self._ask(lambda: self._sweep(token, limit_ms))
        self._note_asked()

    def _note_asked(self) -> None:
        for worker_id in (*self._requested, *self._pids):
            self._asked_ns.setdefault(worker_id, self.owner.loop.now_ns())

    def arm_fence(self, at_ms: int) -> None:
        self._ask(lambda: self._arm(at_ms))

    async def close(self) -> None:
        self._on_event = None
        self.is_closed = True
        self.kill_all()

    def _ask(self, request: Callable[[], None]) -> None:
        if self.is_closed:
            raise HostClosed
        schedule, rng = self.world.schedule, self.owner.loop.rng
        self._ask_ns = max(self._ask_ns, schedule.now_ns + int(rng.uniform(0, HELPER_S_MAX) * 1e9))

        def arrive() -> None:
            if self.is_frozen:
                self._left.append(request)
            elif not self.is_closed:
                request()

        schedule.after((self._ask_ns - schedule.now_ns) / 1e9, arrive)

    def _tell(self, event: HostEvent) -> None:
        self._tell_next(partial(self._emit, event))

    def _tell_next(self, call: Callable[[], None], delay_s: float = 0.0) -> None:
        """Call in the agent, after everything that it was to hear before."""
        if self.is_frozen:
            self._left.append(partial(self._tell_next, call, delay_s))
            return
        schedule, loop = self.world.schedule, self.owner.loop
        at_ns = schedule.now_ns + int((delay_s + loop.rng.uniform(0, HELPER_S_MAX)) * 1e9)
        self._tell_ns = max(self._tell_ns, at_ns)
        schedule.after((self._tell_ns - schedule.now_ns) / 1e9, partial(_call_in, loop, call))

    def _emit(self, event: HostEvent) -> None:
        if self._on_event is None:
            return
        match event:
            case Spawned(worker_id=worker_id, pid=pid):
                self._requested.discard(worker_id)
                self._pids[worker_id] = pid
            case SpawnFailed(worker_id=worker_id):
                self._requested.discard(worker_id)
            case Exited(worker_id=worker_id):
                self._pids.pop(worker_id, None)
                self._asked_ns.pop(worker_id, None)
        try:
            self._on_event(event)
        except Exception as error:  # noqa: BLE001  # as in the real one
            what = f"the handler of {event} failed"
            self.owner.loop.call_exception_handler({"message": what, "exception": error})

    # --- what the helper does ---

    def _spawn(self, request: SpawnRequest, epoch: int) -> None:
        if self._sweeps is not None or self._is_fenced:
            self.world.rules.start_failed(self.owner)
            why = "a sweep is running"
            self._tell(SpawnFailed(request.worker_id, errno.EBUSY, why))
            return
        if self.world.cannot_start():
            self.world.rules.start_failed(self.owner)
            self._tell(SpawnFailed(request.worker_id, errno.ENOENT, "no such file"))
            return
        worker = self.world.spawn(self.owner, request, epoch)
        self.living.append(worker)
        self._tell(Spawned(worker.worker_id, worker.pid))
        self.world.join(worker.group)

    def _signal(self, signum: int, *, alone: bool) -> None:
        world, rng = self.world, self.owner.loop.rng
        for worker in list(self.living):
            if alone:
                continue  # forwarded: these workers handle it
            worker.note_signal(self.world.schedule.now_ns)
            world.note("signal", worker.pid, signum)
            if world.ignores_term():
                continue
            code, died = (0, None) if rng.random() < 0.2 else (None, signum)
            end = _End(self.world, worker, code, died)
            world.schedule.after(rng.uniform(0, DIES_S_MAX), end)

    def _sweep(self, token: int, limit_ms: int) -> None:
        self._sweeps = token
        if self.world.loses_helper():
            self.lose()
            return
        for worker in list(self.living):
            worker.note_signal(self.world.schedule.now_ns)
            worker.is_blocked = worker.is_blocked or self.world.survives_kill()
            if not worker.is_blocked:
                self.world.end(worker, None, SIGKILL)
        if not self.living:
            self._cleaned()
            return
        pids = tuple(sorted(worker.pid for worker in self.living))
        for worker in self.living:
            end = _End(self.world, worker, None, SIGKILL)
            self.world.schedule.after(self.owner.loop.rng.uniform(0.1, UNBLOCKED_S), end)
        blocked = Blocked(token, pids)
        self.world.schedule.after(limit_ms / 1000, lambda: self._block(blocked))

    def _block(self, blocked: Blocked) -> None:
        if self._sweeps == blocked.token and not self.is_closed:
            self._tell(blocked)

    def _cleaned(self) -> None:
        if self._sweeps is not None:
            token, self._sweeps = self._sweeps, None
            self._tell(Clean(token))

    def _arm(self, at_ms: int) -> None:
        if self._fence is not None:
            self._fence.cancel()
        self._is_fenced = False
        delay_s = max(0.0, at_ms / 1000 - self.world.schedule.now_ns / 1e9)
        self._fence = self.world.schedule.after(delay_s, partial(self._fall, at_ms))

    def _fall(self, at_ms: int) -> None:
        if self.is_frozen:
            self._left.append(partial(self._fall, at_ms))
            return
        self._is_fenced = True
        self.fenced_ms = at_ms
        for worker in self.living:
            worker.group.has_died = True
        self.kill_all()

    # --- how processes end ---

    def note_end(self, worker: Worker) -> None:
        """Report the end of a worker to the agent."""
        self.living.remove(worker)
        if self.is_closed:
            return
        if self.is_frozen:
            self._unreaped[worker.worker_id] = worker
        what = worker.worker_id, worker.pid, worker.exit_code, worker.signum
        was_killed = worker.signalled_ns is not None and worker.signum == SIGKILL
        self._tell(Exited(*what, self.world.schedule.now_ns, worker.signalled_ns, was_killed))
        if not self.living:
            self._cleaned()

    def kill_all(self) -> None:
        """Kill every worker at once."""
        for worker in list(self.living):
            worker.note_signal(self.world.schedule.now_ns)
            self.world.end(worker, None, SIGKILL)

    def lose(self) -> None:
        """Let the helper process die, and its workers with it; the agent notices."""
        if self.is_closed:
            return
        self.is_closed, self.is_frozen = True, False
        self._left.clear()
        if self._fence is not None:
            self._fence.cancel()
        for worker in list(self.living):
            self.world.end(worker, None, SIGKILL)
        self._tell_next(self._note_loss)

    def _note_loss(self) -> None:
        self._emit(HelperLost(self.pid))
        for worker_id in sorted(self._requested):
            self.world.rules.start_failed(self.owner)
            self._emit(SpawnFailed(worker_id, errno.EPIPE, "the helper process died"))
        self._tell_next(self._recover, RECOVERY_S)

    def _recover(self) -> None:
        for worker_id, pid in sorted(self._pids.items()):
            now_ns, asked_ns = self.owner.loop.now_ns(), self._asked_ns.pop(worker_id, None)
            worker = self._unreaped.get(worker_id)  # the agent reaps what a dead helper has not
            end = (None, None) if worker is None else (worker.exit_code, worker.signum)
            self._emit(Exited(worker_id, pid, *end, now_ns, asked_ns))
        self._emit(Clean(ORPHANS))


class _End:
    """Ends a worker, if it lives by then."""

    def __init__(self, world: World, worker: Worker, code: int | None, signum: int | None) -> None:
        self._world, self._worker, self._code, self._signum = world, worker, code, signum

    def __call__(self) -> None:
        self._world.end(self._worker, self._code, self._signum)


def _call_in(loop: Loop, call: Callable[[], None]) -> None:
    loop.call_soon(call)
