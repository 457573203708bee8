"""The forkserver of a node: makes it, and lets it fork the workers of every round.

It is started at once, so that it imports while nodes are awaited. A round that comes earlier waits
for it, for some seconds: one import is not slower than one for each worker. Whatever fails here
costs that time and no round: workers start cold then.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from rallypoint.agent.helper.events import Exited, HostEvent, Spawned, SpawnFailed, SpawnRequest
from rallypoint.agent.helper.host import WorkerHost, WorkerHostError
from rallypoint.agent.preload.command import (
    RECORD_ENV,
    Preload,
    Shape,
    find_difference,
    forked_by,
    forkserver_environment,
    importable,
    probe_command,
    with_hook,
)
from rallypoint.agent.preload.forkserver import Forkserver, Hangup
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log = get_logger()

HELLO_LIMIT_S = 30.0
"""How long an interpreter may take until it runs our hook; a cold disk needs seconds."""
IMPORT_LIMIT_S = 600.0
"""How long the imports and calls may take."""
WAIT_LIMIT_S = 20.0
"""How long a round waits for that. After 30 s without a start, a coordinator breaks it up."""
FORK_LIMIT_S = 10.0
"""How long the next of the forks may take; usually 20 ms. Then the forkserver is ended, and workers
start cold."""
FAILURES_MAX = 3
"""With no worker forked in between; then workers start cold for good."""
AGAIN_S = 1.0
"""Before the next attempt."""
AUTO_S = 10.0
"""So long after their start, workers that record their imports have made most of them."""
RECORD_BYTES_MAX = 1 << 20
"""Of the names that cold workers have noted."""
LEFT_OUT_MAX = 5
"""Packages and calls that are left out; each costs another import of the others."""
_THEN_COLD = "every worker imports by itself"


class CannotPreload(Exception):
    """No forkserver can work with this interpreter or these modules; the text says why.

    Attributes:
        culprit: the module or call without which it may; empty: it is not known.
    """

    def __init__(self, why: str, culprit: str = "") -> None:
        """Carry the reason."""
        super().__init__(f"{culprit} {why}" if culprit else why)
        self.why = why
        self.culprit = culprit


class Preloader:
    """Makes the forkserver of a node, and another one when that has ended."""

    def __init__(
        self,
        *,
        preload: Preload,
        shape: Shape,
        inherited: Mapping[str, str],
        sample: Callable[[], SpawnRequest],
        guess: Callable[[], tuple[bool, bool]],
        terminal_fd: int,
        host: Callable[[], WorkerHost],
        record: Callable[[], str],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Begin without a forkserver.

        Args:
            preload: what it imports and calls.
            shape: of the workers' command line.
            inherited: what all workers inherit.
            sample: returns the request of a worker, as far as it is known without a round.
            guess: returns whether its stdout and stderr are terminals, as far as that is known
                without a round.
            terminal_fd: the terminal that output goes to, if it goes to one.
            host: returns the helper.
            record: returns the file in which a cold worker notes what it imports.
            tasks: runs what takes time.
        """
        self._preload = preload
        self._shape = shape
        self._inherited = inherited
        self._sample = sample
        self._guess = guess
        self._terminal_fd = terminal_fd
        self._host = host
        self._record = record
        self._tasks = tasks
        self._files = FileThread("records")
        self._ids = itertools.count(-1, -1)  # those of workers are above
        self._terminals: tuple[bool, bool] | None = None
        """Which streams of the last worker that could not be forked because of them are some."""
        self._is_recording = preload.is_auto
        """The first worker of each round notes what it imports, for the first forkserver."""
        self._recorded: asyncio.TimerHandle | None = None
        """Makes it."""
        self._failed: set[str] = set()
        """Modules that could not be imported."""
        self._left_out: set[str] = set()
        """Packages and calls with which no forkserver can be made."""
        self._failures = 0
        self._making: asyncio.Task[None] | None = None
        self._is_slow = False
        """A round has waited for it in vain; it may hang, and no other round waits."""
        self._servers: dict[int, Forkserver] = {}
        """All that have not ended, by id."""
        self._ready: Forkserver | None = None
        self._cold: dict[int, SpawnRequest] = {}
        """Requests of the workers that are being forked, by id: how they would start cold."""
        self._limit: asyncio.TimerHandle | None = None
        """Ends a forkserver that does not fork."""
        self._has_probed = False
        self._is_given_up = False

    # --- the forkserver ---

    def begin(self) -> None:
        """Make a forkserver, unless there is one or there cannot be."""
        if not (self._is_recording or self._is_given_up or self._ready or self._is_making):
            self._is_slow = False
            self._making = self._tasks.create_task(self._make())

    @property
    def _is_making(self) -> bool:
        return self._making is not None and not self._making.done()

    @property
    def is_importing(self) -> bool:
        """True while workers had better wait."""
        return self._is_making and not self._is_slow

    async def wait(self) -> None:
        """Wait until it can fork, or cannot be made, or workers had better import by themselves."""
        if self._making is not None:
            _, awaited = await asyncio.wait((self._making,), timeout=WAIT_LIMIT_S)
            if awaited:
                self._is_slow = True
                why, then = f"the import takes longer than {WAIT_LIMIT_S:g} s", _THEN_COLD
                log.warning("preload_not_awaited", why=why, then=then)

    async def _make(self) -> None:
        while not self._is_given_up and self._ready is None:
            try:
                await self._try()
            except CannotPreload as error:
                if self._leave_out(error.culprit):
                    then = "the others are preloaded"
                    log.warning("preload_left_out", name=error.culprit, why=error.why, then=then)
                else:
                    self._give_up(str(error))
            except WorkerHostError:
                return  # the helper is lost; `begin` follows once it was replaced
            except (OSError, ValueError) as error:
                if self._goes_on(str(error)):
                    log.warning("forkserver_not_made", why=str(error), then="another is made")
                    await asyncio.sleep(AGAIN_S)

    def _goes_on(self, why: str) -> bool:
        """Count a failure; return whether another attempt follows."""
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._give_up(f"it failed {FAILURES_MAX} times in a row: {why}")
        return not self._is_given_up

    def _leave_out(self, culprit: str) -> bool:
        """Leave out a call, or the package of a module; return whether there are others."""
        self._left_out.add(culprit if ":" in culprit else culprit.partition(".")[0])
        has_others = self._preload.is_auto or self._kept(self._preload.modules)
        return bool(culprit and has_others) and len(self._left_out) <= LEFT_OUT_MAX

    def _kept(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the modules or calls that are not left out."""
        gone = self._left_out
        kept = (one for one in names if one not in gone)
        return tuple(one for one in kept if one.partition(":")[0].partition(".")[0] not in gone)

    def _give_up(self, why: str) -> None:
        self._is_given_up = True
        log.warning("preload_given_up", why=why, then=_THEN_COLD)

    async def _try(self) -> None:
        """Make a forkserver.

        Raises:
            CannotPreload: there cannot be one.
            OSError, WorkerHostError, ValueError: it has failed.
        """
        began_s = time.monotonic()
        request = self._sample()
        if not self._has_probed:
            await self._probe(request)
            self._has_probed = True
        async with self._start(request) as server:
            try:
                async with asyncio.timeout(IMPORT_LIMIT_S):
                    await server.receive()
                    await self._import(server, request)
                if server.end is not None:
                    raise Hangup
            except TimeoutError:
                raise OSError("it has not answered in time") from None
            except Hangup as error:
                raise OSError(await server.find_why()) from error
            self._ready = server
        names = ",".join(self._kept(self._preload.modules)) or "auto"
        log.info("preloaded", names=names, took=f"{time.monotonic() - began_s:.1f}s")

    @asynccontextmanager
    async def _start(self, request: SpawnRequest) -> AsyncIterator[Forkserver]:
        """Start a forkserver, and end it again unless it is the one that forks."""
        environment = forkserver_environment(request.env, self._inherited)
        terminals = self._terminals or self._guess()
        server = Forkserver(next(self._ids), terminals, self._terminal_fd)
        try:
            await server.spawn(self._host(), request._replace(env=environment))
            self._servers[server.id] = server
            yield server
        finally:
            if server is not self._ready:
                self._end(server)

    async def _probe(self, request: SpawnRequest) -> None:
        """Find out whether the interpreter runs our hook; it would run the script without it."""
        python = request.argv[0]
        argv = probe_command(request.argv, self._shape)
        async with self._start(request._replace(argv=argv)) as server:
            try:
                async with asyncio.timeout(HELLO_LIMIT_S):
                    await server.receive()
            except TimeoutError:
                why = f"{python} did not answer within {HELLO_LIMIT_S:g} s"
                raise CannotPreload(why) from None
            except Hangup as error:
                why = await server.find_why()
                if isinstance(server.end, SpawnFailed):
                    raise OSError(why) from error
                why = "it has flags such as -S, -E or -I, or is no Python"
                raise CannotPreload(f"{python} does not run sitecustomize: {why}") from error

    async def _import(self, server: Forkserver, request: SpawnRequest) -> None:
        modules = await self._find_modules()
        program = request.argv[self._shape.flags_end :]
        calls = self._kept(self._preload.calls)
        ready = await server.prepare(modules, calls, self._shape.path, program)
        if ready.get("refusal"):
            raise CannotPreload(str(ready["refusal"]), str(ready.get("culprit", "")))
        for failure in ready.get("failed", ()):
            self._note_failure(str(failure["name"]), str(failure["error"]))
        server.serve()

    async def _find_modules(self) -> tuple[str, ...]:
        if not self._preload.is_auto:
            return self._kept(self._preload.modules)
        names = await self._files.run("reading a record", lambda: _read_names(self._record()))
        return self._kept(importable(names, self._failed, self._shape.module))

    def _note_failure(self, name: str, error: str) -> None:
        if name not in self._failed and not self._preload.is_auto:
            log.warning("preload_import_failed", name=name, error=error, then="workers try again")
        self._failed.add(name)

    def _end(self, server: Forkserver) -> None:
        """End a forkserver, whatever it does."""
        server.close()
        if server.id in self._servers:
            with suppress(WorkerHostError):  # the helper has died, and its children with it
                self._host().signal(signal.SIGKILL, (server.id,))

    def look(self) -> None:
        """Let it look at the files that it has imported, while workers end."""
        if self._ready is not None:
            self._ready.look()

    # --- workers ---

    def choose(self, request: SpawnRequest) -> SpawnRequest:
        """Return the request by which a worker starts: it is forked, if it can be.

        Args:
            request: by which it would start by itself.

        Raises:
            OSError: no descriptor is left.
        """
        if self._is_recording and request.env["RALLYPOINT_LOCAL_RANK"] == "0":
            if self._recorded is None:
                loop = asyncio.get_running_loop()
                self._recorded = loop.call_later(AUTO_S, self._end_recording)
            return request._replace(env=with_hook(request.env, RECORD_ENV, self._record()))
        if self._ready is None:
            return request
        terminals = os.isatty(request.stdout_fd), os.isatty(request.stderr_fd)
        why = ""
        if terminals != self._ready.terminals:
            why, self._terminals = "its output goes to a terminal, or no longer to one", terminals
        elif self._ready.request is not None:
            why = find_difference(self._ready.request, request, self._shape)
        if why:
            log.info("worker_not_forked", why=why, then="it imports by itself")
            return request
        self._keep(request)
        return forked_by(self._ready.id, request, self._shape)

    def _end_recording(self) -> None:
        self._is_recording = False
        self.begin()

    def _keep(self, request: SpawnRequest) -> None:
        """Keep what it takes to start a worker cold, until it was forked."""
        fds: list[int] = []
        try:
            for fd in request.fds:
                fds.append(os.dup(fd))
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        kept = request._replace(stdin_fd=fds[0], stdout_fd=fds[1], stderr_fd=fds[2])
        self._cold[request.worker_id] = kept
        self._set_limit()

    def _take(self, worker_id: int) -> SpawnRequest | None:
        """Return the request of a worker whose fork is answered now; None: it is not forked."""
        request = self._cold.pop(worker_id, None)
        if request is not None:
            self._set_limit()
        return request

    def _set_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if self._cold and self._ready is not None:
            loop = asyncio.get_running_loop()
            self._limit = loop.call_later(FORK_LIMIT_S, self._end_stuck, self._ready)

    def _end_stuck(self, server: Forkserver) -> None:
        then = "it is killed, and workers import by themselves"
        log.warning("forkserver_stuck", why=f"no fork within {FORK_LIMIT_S:g} s", then=then)
        self._end(server)

    def start_cold(self, event: SpawnFailed, *, is_wanted: bool) -> bool:
        """Start a worker by itself that could not be forked.

        Args:
            event: that it was not started.
            is_wanted: whether its round still is.

        Returns:
            Whether it starts now.
        """
        request = self._take(event.worker_id)
        if request is None:
            return False
        try:
            if not is_wanted:
                return False
            log.warning("worker_not_forked", why=event.message, then="it imports by itself")
            self._host().spawn(request)
        except (OSError, WorkerHostError):  # the event tells it
            return False
        finally:
            _close(request)
        return True

    def takes(self, event: HostEvent) -> bool:
        """Note an event; return whether it is about a forkserver."""
        match event:
            case Spawned(worker_id=id):
                if (request := self._take(id)) is not None:
                    self._failures = 0
                    _close(request)
                return id in self._servers
            case Exited(worker_id=id) | SpawnFailed(worker_id=id) if id in self._servers:
                server = self._servers.pop(id)
                server.note_end(event)
                if server is self._ready:
                    self._ready, self._is_slow = None, False
                    self._making = self._tasks.create_task(self._replace(server, event))
            case _:
                return False
        return True

    async def _replace(self, server: Forkserver, event: Exited | SpawnFailed) -> None:
        why = await server.find_why()
        server.close()
        is_stale = isinstance(event, Exited) and event.exit_code == 0  # a file was changed
        if is_stale or self._goes_on(why):
            log.info("forkserver_ended", why=why, then="another is made")
            await self._make()

    async def close(self) -> None:
        """End everything; the helper's own end does the same."""
        self._is_given_up = True
        if self._making is not None:
            self._making.cancel()
        for timer in (self._limit, self._recorded):
            if timer is not None:
                timer.cancel()
        for request in self._cold.values():
            _close(request)
        self._cold.clear()
        for server in self._servers.values():
            server.close()


def _close(request: SpawnRequest) -> None:
    for fd in request.fds:
        os.close(fd)


def _read_names(path: str) -> list[str]:
    with open(path, "rb") as file:
        text = file.read(RECORD_BYTES_MAX).decode("utf-8", "replace")
    return text.split("\n")[:-1]  # the last line may be unfinished
