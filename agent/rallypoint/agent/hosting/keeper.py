"""Sees to it that a coordinator listens at the endpoint, for the agent of the node that hosts it.

`begin` starts it as early as possible, before gRPC is imported. Later the agent calls `prepare`
before each attempt to connect: it starts a coordinator if nothing listens, also when one was
killed. Several agents of one host may do so at the same moment. One coordinator gets the journal
and the port, the others end, and their agents use the one that listens.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from rallypoint.agent.hosting.decision import Hosting
from rallypoint.agent.hosting.facts import is_host, leads_here
from rallypoint.agent.hosting.folder import (
    JOURNAL,
    NoFolder,
    drop_if_stale,
    find_lingering,
    has_journal,
    is_in_use,
    make_folder,
    read_last_line,
)
from rallypoint.agent.hosting.process import HostedProcess, end_lingering
from rallypoint.agent.hosting.protection import Protection, describe_admission
from rallypoint.agent.session.dismissal import Dismissed
from rallypoint.base.addresses import is_loopback
from rallypoint.base.exit_codes import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger
from rallypoint.base.private_files import find_replacer
from rallypoint.wire.access import PLAIN, Access, AccessFailed

log = get_logger()

START_S_MAX = 15.0
"""How long a coordinator may take to listen; a busy machine is slow."""
LOOK_S = 0.02
"""Pause between two looks while it starts."""
YIELD_S = 1.0
"""After a coordinator has ended at its start, another one may be about to listen, or has just
ended. This long nothing else is started; up to `START_S_MAX` while another one has the journal."""
ATTEMPTS_MAX = 3
"""Coordinators in a row that end at their start, after which the agent gives up, unless it was
connected before."""
STRANGER_S = 5.0
"""How long something may give wrong answers until it counts as another program."""
SILENT_S = 30.0
"""How long something may listen without an answer until the agent gives up. It may be a coordinator
that stands still."""
FAREWELL_S_MAX = 5.0
"""How long the agent waits at its end for the coordinator's: until all nodes know the outcome."""


class CannotHost(Dismissed):
    """No coordinator can listen at the endpoint. The text says why, and what to do."""

    def __init__(self, text: str, exit_code: int = EXIT_USAGE) -> None:
        """Keep the text, and what the agent exits with."""
        super().__init__(exit_code, text)


class JobOver(CannotHost):
    """The coordinator has come to its own end, as it does when its job is over."""

    def __init__(self, text: str) -> None:
        """Keep the text."""
        super().__init__(text, EXIT_UNREACHABLE)


class Keeper:
    """Keeps a coordinator at the endpoint, if this node hosts it."""

    def __init__(self, hosting: Hosting, access: Access = PLAIN) -> None:
        """Decide nothing yet.

        Args:
            hosting: where the coordinator listens, and who hosts it.
            access: how the agents of the job prove who they are.
        """
        self.hosting = hosting
        self._access = access
        self._names = FileThread("host names")
        """Looks names up, which may take as long as the network lets it."""
        self._may_host = True
        """No coordinator was found there that a person runs."""
        self.is_host = False
        """Whether this node hosts the coordinator. Set by `begin`."""
        self.is_over = False
        """The coordinator told how the job ended."""
        self._process: HostedProcess | None = None
        self._is_announced = True
        self._why_exposed = ""
        """How another user could replace its journal; empty: no user can."""
        self._is_temporary = False
        """The state folder cannot hold a journal."""
        self._fresh: dict[Path, bool] = {}
        """Folders that this agent has used, and whether they held no journal before."""
        self._failures = 0
        """Coordinators in a row that ended at their start."""
        self._is_known = False
        """A coordinator has answered at the endpoint, and not only at another address of this host.
        """
        self._was_connected = False
        """A coordinator has served this agent."""
        self._has_served = False
        """The one that was started last has served this agent."""
        self._strange_since_s = 0.0
        """When something was first found that listens and is not a coordinator; 0: nothing was."""
        self._problem = ""
        """Why no coordinator serves there, one line, as far as this node knows."""

    def begin(self) -> None:
        """Find out whether this node is the host; if so, start a coordinator unless one listens.

        One that waits only for lost nodes of an earlier job makes room.

        Blocks for a moment while a name is looked up.

        Raises:
            CannotHost: there is no place for the coordinator's journal, or no process can start.
        """
        from rallypoint.agent.hosting.probe import is_listening

        self.is_host = self._may_host and is_host(self.hosting)
        if self.is_host:
            end_lingering(self.hosting.port)
        if self.is_host and not any(is_listening(*where) for where in self._places()):
            self.start()

    async def prepare(self) -> None:
        """Return when something listens at the endpoint, or another node has to see to that.

        Raises:
            CannotHost: nothing listens, and coordinators end at their start; or another program
                listens; or the job is over.
        """
        if self._may_host and not self.is_host and not self._is_known:
            # The endpoint's name may be unknown at first, such as that of a pod.
            self.is_host = await self._names.begin(partial(is_host, self.hosting)).future
        if not self.is_host:
            return
        end_s = time.monotonic() + START_S_MAX
        while (place := await self._find_listener()) is None:
            if self._process is None:
                if self._was_connected and not has_journal(self.hosting.port):
                    raise JobOver(
                        f"the coordinator at {self.hosting.endpoint} has ended while this node was "
                        "away, as it does when its job is over"
                    )
                if not self._start_again():
                    return
            elif self._process.has_ended():
                await self._note_end(self._process)
            elif time.monotonic() > end_s:
                return  # the attempt to connect will say that nothing answers
            else:
                await asyncio.sleep(LOOK_S)
        self._announce()
        if not self._is_known:
            await self._identify(*place)

    def welcomed(self) -> None:
        """Note that a coordinator serves the agent at the endpoint."""
        self._is_known = self._has_served = self._was_connected = True
        self._failures, self._problem = 0, ""
        # A coordinator that a person runs comes back by itself, and needs its port then.
        self._may_host = self._may_host and is_in_use(self.hosting.port)
        self.is_host = self.is_host and self._may_host
        if self._process is not None and not self._process.has_journal():
            # Another agent of this host was quicker. Ours would listen when that one has ended.
            self._process.end()
            self._process = None

    def await_end(self) -> None:
        """Wait until the coordinator has ended or lingers, within a limit, if the job is over.

        A scheduler or a container ends whatever is left of a node, when its agent has ended. The
        other nodes may not have learned the outcome by then.

        A coordinator that has not answered yet at the endpoint is ended: an agent that is
        interrupted at its start, or whose endpoint leads elsewhere, leaves none that waits for
        nodes.
        """
        if self._process is not None and not self._is_known:
            self._process.end()
            self._process.clear()
        if not self.is_host or not self.is_over:
            return
        end_s = time.monotonic() + FAREWELL_S_MAX
        while is_in_use(self.hosting.port) and time.monotonic() < end_s:
            if find_lingering(self.hosting.port) is not None:
                return  # all nodes that are there know the outcome
            time.sleep(LOOK_S)
        if self._process is not None:
            self._process.wait(max(0.0, end_s - time.monotonic()))

    def describe_wait(self) -> str:
        """Return what has to happen when no coordinator answers, one line."""
        if self._problem:
            return self._problem
        host, port, endpoint = self.hosting.host, self.hosting.port, self.hosting.endpoint
        if self.is_host:
            return f"this node hosts it: {endpoint} must lead here"
        if self.hosting.is_chosen is False:
            host = f"node 0 (or that with is_host) at {host}"
        return f"{host} hosts it: check that its agent runs, and that its port {port} is open"

    def _places(self) -> tuple[tuple[str, int], ...]:
        """Return where a coordinator of this host listens.

        This host may not reach itself at the endpoint, which can be an address of a router. On
        many hosts `localhost` has no IPv6 address.
        """
        port = self.hosting.port
        return (self.hosting.host, port), ("localhost", port), ("::1", port)

    async def _find_listener(self) -> tuple[str, int] | None:
        """Return the place where something listens, at best the endpoint; None: nothing does."""
        from rallypoint.agent.hosting.probe import accepts

        for place in self._places():
            if await accepts(*place):
                return place
        return None

    def start(self) -> None:
        """Start a coordinator.

        Raises:
            CannotHost: there is no place for its journal, or no process can start.
        """
        try:
            protection = Protection(self._access, self.hosting.host)
            folder = make_folder(self.hosting.port, is_temporary=self._is_temporary)
            if not self._is_known:
                drop_if_stale(folder)
            self._why_exposed = find_replacer(folder)
            fresh = self._fresh.setdefault(folder, not (folder / JOURNAL).exists())
            self._process = HostedProcess(self.hosting, folder, protection, is_fresh=fresh)
        except AccessFailed as error:
            raise CannotHost(str(error)) from error
        except NoFolder as error:
            raise CannotHost(str(error)) from error
        except OSError as error:
            raise CannotHost(f"cannot start a coordinator: {error.strerror}") from error
        self._is_announced = self._has_served = False

    def _start_again(self) -> bool:
        """Start a coordinator in place of one; return False, after a line, if that is impossible.

        Raises:
            CannotHost: it is impossible, and the agent was never connected.
        """
        try:
            self.start()
        except CannotHost as error:
            if not self._is_known:
                raise
            log.warning("coordinator_not_started", why=str(error), then="retrying")
            return False
        return True

    def _announce(self) -> None:
        """Log the coordinator that listens, if it is this agent's, and was not logged before."""
        if self._is_announced or self._process is None or not self._process.has_journal():
            return
        self._is_announced = True
        hosting, process = self.hosting, self._process
        log.info("coordinator_started", kind="hosted", address=hosting.endpoint, pid=process.pid)
        log.debug("coordinator_log_kept", path=str(process.log))
        if is_loopback(hosting.host):
            who = "this host only; for nodes elsewhere give its name as the endpoint"
        else:
            who = describe_admission(self._access)
        if who:
            log.info("access_granted", to=who)
        if why := self._why_exposed:
            then = "set XDG_STATE_HOME to a folder that no other user can write or move"
            place = str(process.log.parent)
            log.warning("journal_folder_exposed", path=place, why=why, then=then)

    async def _note_end(self, process: HostedProcess) -> None:
        """Note that a coordinator has ended; give another one the time to listen."""
        self._process = None
        if self._has_served:
            log.warning("hosted_coordinator_ended", pid=process.pid, log=str(process.log))
            return
        self._failures += 1
        # For example, there are no locks on many file servers, where home folders are.
        self._is_temporary = self._is_temporary or process.exit_code == EXIT_FAILED
        began_s = time.monotonic()
        while time.monotonic() - began_s < (START_S_MAX if process.has_rival() else YIELD_S):
            if await self._find_listener():
                return
            await asyncio.sleep(LOOK_S)
        why = read_last_line(process.log) or f"{process.log} is empty; is the disk full?"
        self._problem = f"the coordinator at {self.hosting.endpoint} does not start: {why}"
        if self._failures >= ATTEMPTS_MAX and not self._is_known:
            if process.exit_code == EXIT_USAGE:  # else the log may have more than one line
                process.clear()
            raise CannotHost(self._problem)

    async def _identify(self, host: str, port: int) -> None:
        """Check that a coordinator listens; one that is stalled has a while to answer."""
        from rallypoint.agent.hosting.probe import ListenerKind, identify

        try:
            target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            who, why = await identify(target, self._access, self.hosting.host)
        except AccessFailed as error:
            raise CannotHost(str(error)) from error
        endpoint = self.hosting.endpoint
        if who is ListenerKind.SILENT:
            text = f"what listens at {endpoint} does not answer: is it stopped? else choose"
            self._suspect(f"{text} another port", SILENT_S)
        elif who is not ListenerKind.COORDINATOR:
            self._suspect(
                f"what listens at {endpoint} cannot be used: {why}"
                if why
                else f"another program listens at {endpoint}, which is no "
                "coordinator: choose another port",
                0.0 if who is ListenerKind.FOREIGN else STRANGER_S,
            )
        elif host == self.hosting.host:
            self._is_known, self._problem = True, ""
        else:
            await self._suspect_place()

    async def _suspect_place(self) -> None:
        """Note that a coordinator listens on this host, but not at the endpoint."""
        from rallypoint.agent.hosting.probe import accepts

        host, port = self.hosting.host, self.hosting.port
        if await accepts(host, port):
            return  # it has begun to listen meanwhile
        if await self._names.begin(partial(leads_here, host)).future:
            # Such as one for [::1], when this agent's endpoint is the name of the host.
            self._suspect(
                f"a coordinator listens on port {port} of this host, but not at {host}: give all "
                "agents of this host the same endpoint, or choose another port",
                STRANGER_S,
            )
        else:
            self._problem = (
                f"this node hosts it, but {self.hosting.endpoint} does not lead here: correct the "
                "address, or let the node that has it be node 0"
            )

    def _suspect(self, problem: str, patience_s: float) -> None:
        """Give up if what listens there has been no coordinator of this job for so long."""
        now_s = time.monotonic()
        self._strange_since_s = self._strange_since_s or now_s
        self._problem = problem
        if now_s - self._strange_since_s >= patience_s:
            raise CannotHost(problem)
