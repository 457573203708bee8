"""The standbys of a node: makes them, keeps them, and turns them into workers.

policy.py decides when; this module carries it out. home.py has their processes.

Whatever fails here costs a warm start, never a round.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from rallypoint.agent.helper.events import HostEvent, SpawnRequest
from rallypoint.agent.helper.host import WorkerHost, WorkerHostError
from rallypoint.agent.output.kinds import Kind, Kinds, kind_of
from rallypoint.agent.warm import policy
from rallypoint.agent.warm.command import Shape, arguments_of, find_difference
from rallypoint.agent.warm.home import Exchange, Home
from rallypoint.agent.warm.machine import read_memory_bytes, read_swapped_out
from rallypoint.agent.warm.making import CannotMake, Maker
from rallypoint.agent.warm.phase import Phase
from rallypoint.agent.warm.standby import Standby
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

log = get_logger()

RUN_LIMIT_S = 0.05
"""How long a start waits for its standbys; those that have not answered are ended."""
LOOK_AGAIN_S = 1.0
"""The end of a worker and the stop that follows it are one reason to look."""
_MIB = 1 << 20


class Pool:
    """The standbys of one node."""

    def __init__(
        self,
        *,
        maker: Maker,
        shape: Shape,
        inherited: Mapping[str, str],
        state: policy.State,
        tasks: asyncio.TaskGroup,
        launch: Callable[[], WorkerHost],
    ) -> None:
        """Begin without standbys.

        Args:
            maker: makes one of them.
            shape: of the workers' command line.
            inherited: what all workers inherit.
            state: of the policy.
            tasks: runs what takes time.
            launch: starts a helper.
        """
        self._maker = maker
        self._shape = shape
        self._inherited = inherited
        self._state = state
        self._tasks = tasks
        self._home = Home(launch, self._on_ended)
        self._ready: dict[int, Standby] = {}
        """Those that wait, by local rank."""
        self._offered: dict[int, Standby] = {}
        """Those that the round that starts may use."""
        self._making: asyncio.Task[None] | None = None
        self._made_since_s: float | None = None
        """When the first standby since the last log line was begun."""
        self._pending: deque[policy.Input] = deque()
        self._is_stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._files = FileThread("standbys")
        self._is_closed = False
        self._looked_s = 0.0
        """When the standbys were last asked to look at their files."""

    # --- the policy ---

    def enter(self, phase: Phase) -> None:
        """Note what the node does now."""
        if self._is_closed:
            return
        if phase is Phase.STARTING and self._state.phase is not phase:
            self._stop_making()
            self._offered, self._ready = self._ready, {}
        elif phase is not Phase.STARTING:
            self._end_offered()
        if phase in (Phase.DISTURBED, Phase.STOPPING):
            self._look()
        self._post(policy.Phased(phase))

    def calm(self) -> None:
        """Note that what was announced will not happen: the round runs on as before."""
        if self._state.phase is Phase.DISTURBED:
            self.enter(Phase.RUNNING)

    def _look(self) -> None:
        """Let all standbys look at their files while workers end, not when the next ones start."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_AGAIN_S:
            return
        self._looked_s = now_s
        for standby in self._ready.values():
            standby.look()

    def begin(self) -> None:
        """Begin to make standbys, when the policy wants them."""
        self._post(policy.TimePassed())

    def _post(self, input: policy.Input) -> None:
        self._pending.append(input)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._pending and not self._is_closed:
                now_ms = time.monotonic_ns() // 1_000_000
                self._state, todo = policy.step(self._state, self._pending.popleft(), now_ms)
                for effect in todo:
                    self._do(effect)
        finally:
            self._is_stepping = False
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = policy.next_deadline_ms(self._state)
        if due_ms is not None and not self._is_closed:
            delay_s = max(0.0, due_ms / 1000 - time.monotonic()) + 0.001
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_s, self._post, policy.TimePassed())

    def _do(self, effect: policy.Effect) -> None:
        match effect:
            case policy.Look():
                self._post(policy.Swapped(read_swapped_out()))
            case policy.Make(rank):
                if self._made_since_s is None:
                    self._made_since_s = time.monotonic()
                self._making = self._tasks.create_task(self._make(rank))
            case policy.Weigh():
                self._tasks.create_task(self._weigh())
            case policy.End(rank):
                self._home.end(self._ready.pop(rank))
            case policy.LogReady(workers, used):
                took_s = time.monotonic() - (self._made_since_s or time.monotonic())
                self._made_since_s = None
                memory = f"{used // _MIB}MiB"
                log.info("standbys_ready", workers=workers, took=f"{took_s:.1f}s", memory=memory)
            case policy.LogLimited(used, kept):
                why = "together they use more than --warm-memory"
                log.warning("standbys_ended", why=why, memory=f"{used // _MIB}MiB", kept=kept)
            case policy.LogGivenUp(rank):
                why = f"it failed {policy.FAILURES_MAX} times in a row"
                log.warning("standby_given_up", local_rank=rank, why=why)

    async def _weigh(self) -> None:
        pids = [(rank, standby.pid) for rank, standby in sorted(self._ready.items())]

        def read() -> tuple[tuple[int, int], ...]:
            return tuple((rank, read_memory_bytes(pid)) for rank, pid in pids)

        with suppress(OSError):  # the machine has no thread left: later, perhaps
            self._post(policy.Weighed(await self._files.run("reading memory", read)))

    # --- making them ---

    async def _make(self, rank: int) -> None:
        standby: Standby | None = None
        try:
            if not self._maker.has_probed:
                standby = self._maker.probe(self._home.open())
                self._home.add(standby)
                await self._maker.await_probe(standby)
                self._home.end(standby)
            standby = self._maker.begin(self._home.open(), rank)
            self._home.add(standby)
            await self._maker.prepare(standby)
            if standby.exited is not None:
                raise OSError(standby.find_why())
        except CannotMake as error:
            log.warning("standbys_disabled", why=str(error), then="every worker starts cold")
            self._post(policy.Refused())
        except (OSError, WorkerHostError, ValueError) as error:
            log.warning("standby_not_made", local_rank=rank, why=str(error))
            self._post(policy.Failed(rank))
        else:
            self._ready[rank] = standby
            log.debug("standby_made", local_rank=rank, pid=standby.pid)
            standby = None
            self._post(policy.Made(rank))
        finally:
            if standby is not None:
                self._home.end(standby)

    def _stop_making(self) -> None:
        if self._making is not None:
            self._making.cancel()
            self._making = None

    def _end_offered(self) -> None:
        while self._offered:
            self._home.end(self._offered.popitem()[1])

    # --- what becomes of them ---

    def takes(self, event: HostEvent) -> bool:
        """Return whether an event is about a standby that has not become a worker; note it."""
        return self._home.takes(event)

    def _on_ended(self, standby: Standby) -> None:
        rank = standby.local_rank
        if self._ready.get(rank) is standby:
            del self._ready[rank]
            log.info("standby_ended", local_rank=rank, why=standby.find_why())
            standby.close()
            self._post(policy.Lost(rank))

    # --- a start ---

    def choose(
        self,
        requests: Mapping[int, SpawnRequest],
        exchange: Exchange,
    ) -> dict[int, Standby]:
        """Return the standbys that become workers of the round that starts, by local rank.

        All others are ended. If there are any, their helper is the round's from now on.

        Args:
            requests: the workers, by local rank.
            exchange: lets the round run below the standbys' helper.
        """
        chosen: dict[int, Standby] = {}
        host = self._home.host
        for rank, request in sorted(requests.items()):
            kinds = Kinds(kind_of(request.stdout_fd), kind_of(request.stderr_fd))
            self._maker.kinds[rank] = kinds
            standby = self._offered.get(rank)
            if standby is None or host is None or not host.takes_requests:
                continue
            why = self._find_hindrance(standby, request, kinds)
            if why:
                log.info("standby_not_used", local_rank=rank, why=why)
            else:
                chosen[rank] = self._offered.pop(rank)
        self._end_offered()
        if chosen and not self._home.exchange(exchange):
            self.abandon(chosen)
            return {}
        return chosen

    def _find_hindrance(self, standby: Standby, request: SpawnRequest, kinds: Kinds) -> str:
        if kinds != standby.kinds or Kind.OTHER in (kinds.out, kinds.err):
            return "its output goes elsewhere now"
        if standby.request is None or standby.exited is not None:
            return standby.find_why()
        return find_difference(standby.request, request, self._shape, self._inherited)

    async def run(
        self, chosen: Mapping[int, Standby], requests: Mapping[int, SpawnRequest]
    ) -> dict[int, Standby]:
        """Turn standbys into workers; return those that are, by local rank. The others are ended.

        Args:
            chosen: the standbys, by local rank.
            requests: the workers, by local rank.
        """
        ranks = sorted(chosen)
        # All of them work on it before the time of the first begins to count.
        refusals = [self._ask(chosen[rank], requests[rank]) for rank in ranks]
        answers = [self._tasks.create_task(chosen[rank].answer()) for rank in ranks]
        try:
            await asyncio.wait(answers, timeout=RUN_LIMIT_S)
        finally:  # also of a round that was stopped: no answer may be waited for without end
            for answer in answers:
                answer.cancel()
        running: dict[int, Standby] = {}
        for rank, refusal, answer in zip(ranks, refusals, answers, strict=True):
            standby = chosen[rank]
            why = refusal or _find_why(standby, answer)
            if why:
                log.info("standby_not_used", local_rank=rank, why=why)
                self._home.end(standby)
            else:
                running[rank] = standby
        return running

    def _ask(self, standby: Standby, request: SpawnRequest) -> str:
        """Let a standby become a worker; return why it cannot be asked, or ""."""
        stdio = (request.stdin_fd, request.stdout_fd, request.stderr_fd)
        try:
            standby.ask(request.env, arguments_of(request.argv, self._shape), stdio)
        except ValueError as error:  # a plug-in has set a variable that cannot be encoded
            return str(error)
        return ""

    def hand_over(self, standby: Standby) -> None:
        """Give up a standby that is a worker now: its next events are those of a worker."""
        self._home.release(standby)

    def abandon(self, chosen: Mapping[int, Standby]) -> None:
        """End standbys whose round was stopped before they were workers."""
        for standby in chosen.values():
            self._home.end(standby)

    def note_record(self, rank: int, path: str) -> None:
        """Note in which file a cold worker records what it imports."""
        self._maker.records[rank] = path
        self._post(policy.Importable())

    async def close(self) -> None:
        """End all standbys, and their helper."""
        self._is_closed = True
        self._stop_making()
        if self._timer is not None:
            self._timer.cancel()
        await self._home.close()


def _find_why(standby: Standby, answer: asyncio.Task[str]) -> str:
    """Return why a standby that was asked does not run, or "" if it does."""
    if answer.done():
        return answer.result()
    if standby.refuse():
        return ""
    return f"it did not answer within {RUN_LIMIT_S * 1000:.0f} ms"
