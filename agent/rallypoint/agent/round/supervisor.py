"""The workers of a node: what all its rounds share, and the round that it holds or held last.

The supervisor decides nothing. The core sends it requests, which are the round's, and gets what
becomes of them as inputs. What the helper reports about a worker goes to the round (round.py); what
it reports about itself stays here.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import Notice, RunOrder
from rallypoint.agent.core.held_round import choose_look_ms
from rallypoint.agent.evidence.collect import LIMIT_S, collect
from rallypoint.agent.evidence.progress import Limits
from rallypoint.agent.evidence.survivors import log_survivors
from rallypoint.agent.evidence.watch import ProgressWatch
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
    Swept,
)
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.exits import ExitReports, new_observers
from rallypoint.agent.round.helper_watch import HelperWatch
from rallypoint.agent.round.marks import MarkPipe
from rallypoint.agent.round.notices import NoticeWriter
from rallypoint.agent.round.own_folder import Folders, OwnFolder
from rallypoint.agent.round.parts import NodeParts
from rallypoint.agent.round.requests import WorkerRequests
from rallypoint.agent.round.round import Round
from rallypoint.agent.torchelastic.error_watch import ErrorWatch, Found
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger
from rallypoint.v1.evidence_pb2 import RankEvidence

if TYPE_CHECKING:  # a node that preloads nothing loads nothing of it
    from rallypoint.agent.preload.command import Preload, Shape
    from rallypoint.agent.preload.preloader import Preloader

log = get_logger()

LOOK_SHARE = 0.8
"""Part of the time until SIGKILL that a look at workers takes at most."""
LOG_SHARE = 0.9
"""Part of it after which the log does not wait for a look that began for another reason."""
CHECK_S_MAX = 30.0
"""How long an attempt to make folders waits for the file system."""


class Supervisor:
    """The workers of one node."""

    def __init__(
        self,
        *,
        host: WorkerHost,
        launch: Launch,
        job_id: str,
        environment: Mapping[str, str],
        variables: Callable[[], tuple[tuple[str, str], ...]],
        post: Callable[[inputs.Input], None],
        tasks: asyncio.TaskGroup,
        outputs: WorkerOutputs,
        plugin: LogsPlugin | None = None,
        preload: tuple[Preload, Shape, RunOrder] | None = None,
        is_wanted: Callable[[int], bool] = lambda number: True,
        began: Callable[[RunOrder], None] = lambda order: None,
        limits: Limits | None = None,
    ) -> None:
        """Begin without workers.

        Args:
            host: the helper process.
            launch: the command line of a worker.
            job_id: the job, for its workers.
            environment: what workers inherit, with the mark by which leftovers are found.
            variables: further variables of ours, as they are when a round starts.
            post: takes inputs of the core, in the event loop.
            tasks: runs what takes time.
            outputs: where the workers' output goes.
            plugin: assigns where the workers of a round write; None: `outputs` does.
            preload: what is preloaded, the shape of the workers' command line, and an order that
                stands for those of all rounds; None: nothing.
            is_wanted: tells whether a round still has to start or keep running.
            began: learns that the workers of a round were requested.
            limits: how long workers may make no progress; None: without a limit.
        """
        self.tasks = tasks
        self._environment = environment
        self._began = began
        self._has_removed_dead = False
        """Folders of dead agents were looked for."""
        self._preloader = None if preload is None else self._new_preloader(outputs, *preload)
        # Several threads, because a file system may stand still, and each call waits for the last.
        files, own_files = FileThread("files"), FileThread("own files")
        evidence_files = FileThread("evidence")
        own, helper = OwnFolder(lambda: outputs.folder.path), HelperWatch(host, post)
        observers = new_observers(environment, own, own_files, lambda: helper.host.pid)
        self._parts = NodeParts(
            launch=launch,
            job_id=job_id,
            variables=variables,
            post=post,
            is_wanted=is_wanted,
            began=self._on_began,
            tasks=tasks,
            outputs=outputs,
            plugin=plugin,
            helper=helper,
            files=files,
            own=own,
            folders=Folders(outputs, files, own, own_files),
            evidence_files=evidence_files,
            watch=ProgressWatch(limits, evidence_files, tasks),
            notices=NoticeWriter(own, own_files, tasks),
            marks=MarkPipe(own.path, post),
            errors=ErrorWatch(FileThread("error files"), tasks, self._on_error_found),
            exits=ExitReports(post, files, observers),
            preloader=self._preloader,
        )
        self._collecting: asyncio.Task[list[RankEvidence]] | None = None
        self.round = Round(self._parts)
        """The round that the node holds, or held last."""

    def _new_preloader(
        self, outputs: WorkerOutputs, preload: Preload, shape: Shape, order: RunOrder
    ) -> Preloader:
        from rallypoint.agent.preload.preloader import Preloader

        consoles = outputs.consoles
        err = consoles.err.fd

        def sample() -> tuple[SpawnRequest, tuple[bool, bool]]:
            requests = WorkerRequests(self._parts, order, self._environment)
            return requests.sample(0), outputs.terminals(order, 0)

        return Preloader(
            preload=preload,
            shape=shape,
            inherited=self._environment,
            sample=sample,
            terminal_fd=err if os.isatty(err) else consoles.out.fd,
            host=lambda: self._parts.helper.host,
            record=lambda: str(self._parts.own.path() / "imports"),
            tasks=self.tasks,
        )

    async def begin(self) -> None:
        """Start the plug-in for logs, listen to the helper, and start the observers.

        Raises:
            TimerFileRefused: timers are enabled, but their FIFO cannot be made.
        """
        if self._parts.plugin is not None:
            await self._parts.plugin.begin()
        self.attach()
        await self._parts.exits.begin()

    def attach(self) -> None:
        """Begin to listen to the helper."""
        self._parts.helper.begin(self._on_event)
        if self._preloader is not None:
            self._preloader.begin()

    @property
    def is_starting(self) -> bool:
        """True from the request to start a round until its workers start."""
        return self.round.is_starting

    # --- requests of the core ---

    def start(self, order: RunOrder) -> None:
        """Start the workers of a round, in rank order, once their files are prepared."""
        self.round = Round(self._parts, order)
        self.round.begin(self._environment)

    def signal(self, signum: int) -> None:
        """Signal the process group of every worker; its handler finds the notices written."""
        self.round.signal(signum)

    def forward(self, signum: int) -> None:
        """Signal the process of every live worker, but not the processes that it started."""
        self.round.forward(signum)

    def tell(self, number: int, notices: Sequence[Notice], node_name: str) -> None:
        """Write `notices` to the notice file of a round; an empty list removes the file."""
        self._parts.notices.write(number, notices, node_name)

    async def notices_written(self) -> None:
        """Wait until the last notices are written, for a moment at most."""
        await self._parts.notices.written()

    def sweep(self, token: int) -> None:
        """Kill every process that the workers started; `Swept` answers, after every exit."""
        self.round.sweep(token)

    def arm_fence(self, at_ms: int) -> None:
        """Let everything be killed at this monotonic time; a later call moves that time."""
        self._parts.helper.arm_fence(at_ms)

    async def check_files(self, workers: int) -> None:
        """Find out whether the folders and files of so many workers can be made.

        Raises:
            OSError: they cannot, or the file system does not answer.
        """
        try:
            async with asyncio.timeout(CHECK_S_MAX):
                await self._parts.folders.check(workers)
        except TimeoutError:
            raise OSError(f"the file system does not answer within {CHECK_S_MAX:g} s") from None

    async def end_workers(self, grace_s: float) -> None:
        """Stop the workers without the core: SIGTERM, and `grace_s` seconds for their ends."""
        self.signal(signal.SIGTERM)
        look_s = choose_look_ms(int(grace_s * 1000)) / 1000
        looking = self.tasks.create_task(self._look_later(grace_s - look_s, look_s))
        try:
            async with asyncio.timeout(grace_s):
                await self.round.ended()
        except TimeoutError:
            log.warning("workers_survived_stop", within_s=grace_s, then="SIGKILL")
        finally:
            looking.cancel()

    async def _look_later(self, pause_s: float, look_s: float) -> None:
        await asyncio.sleep(pause_s)
        if look_s:
            await self.log_survivors(look_s)

    async def log_survivors(self, limit_s: float) -> None:
        """Log where the workers stand that have not ended since the stop signal.

        Args:
            limit_s: how long it is until SIGKILL. What is not known by then is not logged.
        """
        round = self.round
        found: list[RankEvidence] = []
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s * LOG_SHARE):
                    found = await self.evidence(limit_s * LOOK_SHARE)
            log_survivors(round.number, round.targets(), found)
        except Exception as error:  # a bug in what describes workers must not end the agent
            log.error("survivors_not_logged", round=round.number, exc_info=error)

    async def evidence(self, limit_s: float = LIMIT_S) -> list[RankEvidence]:
        """Return what each live worker of the held round does, by rank, within this time.

        Callers that come meanwhile share one collection.
        """
        if self._collecting is None or self._collecting.done():
            self._collecting = self.tasks.create_task(self._collect(limit_s))
        return list(await asyncio.shield(self._collecting))

    async def _collect(self, limit_s: float) -> list[RankEvidence]:
        parts = self._parts
        parts.watch.disturb()

        def signal_alone(signum: int, worker_ids: Collection[int]) -> None:
            parts.helper.request(lambda host: host.signal(signum, worker_ids, alone=True))

        try:
            return await collect(
                self.round.targets(),
                signal=signal_alone,
                own_files=parts.evidence_files,
                logs=parts.files,
                limit_s=limit_s,
            )
        except Exception as error:  # a bug in what looks at workers must not end them
            log.error("evidence_failed", round=self.round.number, exc_info=error)
            return []
        finally:
            parts.watch.disturb()

    def parts(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return what closes each part, in order.

        The helper ends all processes below it; then the workers' output is drained.
        """
        return (
            self._close_observers,
            self._close_watch,
            self._close_host,
            *(() if self._preloader is None else (self._preloader.close,)),
            self._parts.outputs.finish,
            self._parts.folders.close_logs,
            self._parts.folders.remove_own,
        )

    async def _close_observers(self) -> None:
        self._parts.errors.close()
        self._parts.exits.close()
        self._parts.marks.close()
        self._parts.watch.close()

    async def _close_watch(self) -> None:
        self._parts.helper.close()

    async def _close_host(self) -> None:
        await self._parts.helper.host.close()

    # --- what its parts report ---

    def _on_began(self, order: RunOrder) -> None:
        self._began(order)
        self._watch_progress(self.round)
        if not self._has_removed_dead:  # after the first start, because no worker has to wait
            self._has_removed_dead = True
            self.tasks.create_task(self._parts.folders.remove_dead())

    def _watch_progress(self, round: Round) -> None:
        parts, number = self._parts, round.number

        def see(since_ms: int | None) -> None:
            parts.post(inputs.ProgressSeen(number, since_ms))

        parts.watch.begin(round.targets, lambda: parts.is_wanted(number), see)

    def _on_error_found(self, found: Found) -> None:
        self.round.report_found(found)

    def _on_event(self, event: HostEvent) -> None:
        if self._preloader is not None and self._preloader.takes(event):
            return
        parts = self._parts
        match event:
            case Spawned() | SpawnFailed() | Exited():
                self.round.on_event(event)
            case Clean(token=token) if token == ORPHANS:
                parts.exits.swept()
                self._replace_host()
            case Clean():
                try:
                    parts.exits.swept()
                finally:
                    self.round.note_clean()
            case Blocked(token=token, pids=pids):
                parts.post(inputs.SweepBlocked(token, pids))
            case Swept(pids=pids):
                log.warning("leftovers_killed", pids=pids, why="their agent is dead")
            case HelperLost(pid=pid):
                then = "a new one starts" if parts.helper.host.is_replaceable else "the agent ends"
                log.error("helper_lost", pid=pid, then=f"its workers are dead; {then}")

    def _replace_host(self) -> None:
        """Start a new helper; nothing is left below the old one.

        Raises:
            HelperIrreplaceable: the agent cannot run workers any more, and ends.
        """
        try:
            self._parts.helper.replace()
            if self._preloader is not None:
                self._preloader.begin()
        finally:
            self.round.note_clean()
