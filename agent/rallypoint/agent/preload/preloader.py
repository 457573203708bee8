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
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress

from msgspec import Struct, field

from rallypoint.agent.evidence.hook import armed, with_hook
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
)
from rallypoint.agent.preload.forkserver import Forkserver, Hangup
from rallypoint.base import worker_variables
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

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


class Preloader(Struct, kw_only=True):
    """Makes the forkserver of a node, and another one when that has ended."""

    preload: Preload
    """What it imports and calls."""
    shape: Shape
    """Of the workers' command line."""
    inherited: Mapping[str, str]
    """What all workers inherit."""
    sample: Callable[[], tuple[SpawnRequest, tuple[bool, bool]]]
    """Returns the request of a worker, and whether its stdout and stderr are terminals, as far as
    that is known without a round."""
    terminal_fd: int
    """The terminal that output goes to, if it goes to one."""
    host: Callable[[], WorkerHost]
    """Returns the helper."""
    record: Callable[[], str]
    """Returns the file in which a cold worker notes what it imports, for the first forkserver."""
    tasks: asyncio.TaskGroup
    _files: FileThread = field(default_factory=lambda: FileThread("records"))
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(-1, -1))
    """Those of workers are above."""
    _recorded: asyncio.TimerHandle | None = None
    """Begins the first forkserver, if its modules are not named."""
    _has_record: bool = False
    """That was begun."""
    _failed: set[str] = field(default_factory=set)
    """Modules that could not be imported."""
    _left_out: set[str] = field(default_factory=set)
    """Packages and calls with which no forkserver can be made."""
    _failures: int = 0
    _making: asyncio.Task[None] | None = None
    _is_slow: bool = False
    """A round has waited for it in vain; it may hang, and no other round waits."""
    _servers: dict[int, Forkserver] = field(default_factory=dict)
    """All that have not ended, by id."""
    _ready: Forkserver | None = None
    _cold: dict[int, SpawnRequest] = field(default_factory=dict)
    """Requests of the workers that are being forked, by id: how they would start cold."""
    _limit: asyncio.TimerHandle | None = None
    """Ends a forkserver that does not fork."""
    _has_probed: bool = False
    _is_given_up: bool = False

    # --- the forkserver ---

    def begin(self) -> None:
        """Make a forkserver, unless there is one or there cannot be."""
        is_known = self._has_record or not self.preload.is_auto
        if is_known and not (self._is_given_up or self._ready or self._is_making):
            self._is_slow = False
            self._making = self.tasks.create_task(self._make())

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
        if not culprit or len(self._left_out) == LEFT_OUT_MAX:
            return False
        self._left_out.add(culprit if ":" in culprit else _package_of(culprit))
        return self.preload.is_auto or bool(self._kept(self.preload.modules))

    def _kept(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the modules or calls that are not left out."""
        return tuple(one for one in names if not self._left_out & {one, _package_of(one)})

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
        request, terminals = self.sample()
        if not self._has_probed:
            await self._probe(request, terminals)
            self._has_probed = True
        async with self._start(request, terminals) as server:
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
        names = ",".join(self._kept(self.preload.modules)) or "auto"
        log.info("preloaded", names=names, took=f"{time.monotonic() - began_s:.1f}s")

    @asynccontextmanager
    async def _start(
        self, request: SpawnRequest, terminals: tuple[bool, bool]
    ) -> AsyncIterator[Forkserver]:
        """Start a forkserver, and end it again unless it is the one that forks."""
        environment = forkserver_environment(request.env, self.inherited)
        request = request._replace(worker_id=next(self._ids), env=environment)
        server = Forkserver(request, terminals, self.terminal_fd)
        try:
            await server.spawn(self.host())
            self._servers[server.id] = server
            yield server
        finally:
            if server is not self._ready:
                self._end(server)

    async def _probe(self, request: SpawnRequest, terminals: tuple[bool, bool]) -> None:
        """Find out whether the interpreter runs our hook; it would run the script without it."""
        python = request.argv[0]
        argv = (*request.argv[: self.shape.flags_end], "-c", "pass")
        async with self._start(request._replace(argv=argv), terminals) as server:
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
        program = request.argv[self.shape.flags_end :]
        calls = self._kept(self.preload.calls)
        ready = await server.prepare(modules, calls, self.shape.path, program)
        if ready["refusal"]:
            raise CannotPreload(ready["refusal"], ready["culprit"])
        for failure in ready["failed"]:
            self._note_failure(failure["name"], failure["error"])
        server.serve()

    async def _find_modules(self) -> tuple[str, ...]:
        if not self.preload.is_auto:
            return self._kept(self.preload.modules)
        names = await self._files.run("reading a record", lambda: _read_names(self.record()))
        return self._kept(importable(names, self._failed, self.shape.module))

    def _note_failure(self, name: str, error: str) -> None:
        if name not in self._failed and not self.preload.is_auto:
            log.warning("preload_import_failed", name=name, error=error, then="workers try again")
        self._failed.add(name)

    def _end(self, server: Forkserver) -> None:
        """End a forkserver, whatever it does."""
        server.close()
        if server.id in self._servers:
            with suppress(WorkerHostError):  # the helper has died, and its children with it
                self.host().signal(signal.SIGKILL, (server.id,))

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
        if self._ready is None:
            return self._noting(request)
        why = find_difference(self._ready.request, request, self.shape)
        if self._ready.terminals != (os.isatty(request.stdout_fd), os.isatty(request.stderr_fd)):
            why = "its output goes to a terminal, or no longer to one"
        if why:
            log.info("worker_not_forked", why=why, then="it imports by itself")
            return request
        self._keep(request)
        return forked_by(self._ready.id, request, self.shape)

    def _noting(self, request: SpawnRequest) -> SpawnRequest:
        """Let one worker of each round note its imports, until the first forkserver is made."""
        is_first = request.env[worker_variables.LOCAL_RANK] == "0"
        if self._has_record or not self.preload.is_auto or not is_first:
            return request
        if self._recorded is None:
            self._recorded = asyncio.get_running_loop().call_later(AUTO_S, self._begin_recorded)
        return request._replace(env=with_hook(request.env, RECORD_ENV, self.record()))

    def _begin_recorded(self) -> None:
        self._has_record = True
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
            self.host().spawn(armed(request))
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
                    self._making = self.tasks.create_task(self._replace(server, event))
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


def _package_of(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _close(request: SpawnRequest) -> None:
    for fd in request.fds:
        os.close(fd)


def _read_names(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            text = file.read(RECORD_BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:  # the workers have ended before
        return []
    return text.split("\n")[:-1]  # the last line may be unfinished
