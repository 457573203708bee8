"""The processes of a seed: the real agent and the real coordinator, each with its own loop.

`life.live` runs the agent with its real link and its real supervisor, `serving` the coordinator
with its real loop, services and outboxes. `stand_ins` replaces what would reach the machine: gRPC,
clocks, files, the helper process, random numbers and the log.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc.aio

from rallypoint.agent import agent as agent_shell
from rallypoint.agent import life
from rallypoint.agent.agent import Agent
from rallypoint.agent.core import inputs
from rallypoint.agent.output.outputs import WorkerOutput
from rallypoint.agent.round import exits, notices, own_folder, supervisor
from rallypoint.agent.round import round as held_round
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.supervisor import Supervisor
from rallypoint.agent.session import link
from rallypoint.agent.settings import AgentCallbacks, Settings
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import Logger
from rallypoint.relay import uplinks
from rallypoint.server import serve
from rallypoint.server.agents import connections
from rallypoint.server.agents import service as agent_service
from rallypoint.server.agents.relays import carrying
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.memory import MemoryJournal
from rallypoint.server.serve import Settings as ServerSettings
from rallypoint.server.serve import serving
from rallypoint.server.shell import beginning, clock, stepper
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire import connecting
from sim.durable.journal import DiskJournal
from sim.seeds.planting import Patch, patched
from sim.shells.calls import Channel, Server
from sim.shells.loop import Loop, VirtualTime, new_loop
from sim.shells.plan import JobPlan, NodePlan
from sim.shells.workers import Group, Helper

if TYPE_CHECKING:
    from sim.shells.world import Host, World

ADDRESS = "10.9.9.9"
PORT = 50_051
TARGET = f"{ADDRESS}:{PORT}"
COORDINATOR_TIMEOUT_MS = 10_000
FIRST_PORT = 20_000
SIGTERM = 15


class AgentProcess:
    """One agent, from its start to its exit."""

    def __init__(self, world: World, host: Host, job: JobPlan, incarnation: int) -> None:
        self.world = world
        self.host = host
        self.loop = new_loop(world.schedule, f"{host.name}/{incarnation}", Random(world.draw()))
        self.loop.threads_busy_s = self._files_s
        self.loop.holds_stderr = world.holds_stderr
        self.helper = Helper(world, self)
        self.exit_code: int | None = None
        self.is_gone = False
        self.was_killed = False
        self.was_terminated = False
        self.finished: agent_pb2.Finished | None = None
        """The outcome, as the agent told its user."""
        callbacks = AgentCallbacks(finished=self._on_finished, disconnected=lambda absence: None)
        settings = _settings(host.plan, job, incarnation, world.targets_of(host))
        ports: Any = Ports(self)
        self.agent = Agent(settings, callbacks, ports, world.schedule.clock_ns() // 1_000_000)
        self.agent_groups: dict[Group, None] = {}
        """The rounds whose workers it started, oldest first."""
        self.main: asyncio.Task[int] | None = None

    def begin(self) -> None:
        """Start the process."""
        self.main = self.loop.create_task(life.live(self.agent, self.helper, None))  # type: ignore[arg-type]
        self.main.add_done_callback(lambda task: self.world.agent_ended(self))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.was_terminated = True
        self.loop.call_soon(self.agent.post, inputs.SignalReceived(SIGTERM))

    def _files_s(self) -> float:
        most_s = self.world.rates.files_s
        return self.loop.rng.choice((0.0, self.loop.rng.uniform(0, most_s))) if most_s else 0.0

    def _on_finished(self, finished: agent_pb2.Finished, _: object) -> None:
        self.finished = finished
        self.world.rules.outcome_received(self, finished)


class CoordinatorProcess:
    """One life of the coordinator."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.loop = new_loop(world.schedule, f"coordinator/{number}", Random(world.draw()))
        self.loop.journal_s = world.rates.journal_s
        self.server: Server | None = None
        self.is_gone = False
        self.was_killed = False
        self.could_not_write = False
        """Its disk has failed, so it ends."""
        self._stop = asyncio.Event()
        self.main = self.loop.create_task(self._live())
        self.main.add_done_callback(lambda task: world.coordinator_ended(self))

    async def _live(self) -> None:
        try:
            await self._serve()
        except JournalFailed:
            if not self.could_not_write:
                raise

    async def _serve(self) -> None:
        disk = self.world.disk
        journal = DiskJournal(disk) if disk.is_durable else None
        settings = ServerSettings(ADDRESS, PORT, self.world.timing, journal=journal)
        async with serving(settings) as running:
            stop = asyncio.get_running_loop().create_task(self._stop.wait())
            await asyncio.wait((stop, running.failed), return_when=asyncio.FIRST_COMPLETED)
            if running.failed.done() and not self.could_not_write:
                self.world.violate("CoordinatorLives", f"{running.failed.exception()!r}")
            stop.cancel()

    def stop(self) -> None:
        """Let it end in order, as after SIGTERM."""
        self.loop.call_soon(self._stop.set)


def _settings(plan: NodePlan, job: JobPlan, incarnation: int, targets: str) -> Settings:
    unused: Any = None
    return Settings(
        coordinator=targets,
        is_standalone=False,
        job_id=plan.job_id,
        spec=job.spec,
        workers=plan.workers,
        role="default",
        node_name=plan.name,
        node_name_explicit=False,
        node_rank=None,
        address=f"10.0.{plan.job_id[3:]}.{int(plan.name[1:]) + 1}",
        host_name=plan.name,
        labels={},
        launch_id="",
        launch=Launch("train.py", (), no_python=True),
        program=agent_pb2.Program(name="train.py"),
        output=unused,
        logs_plugin=None,
        shutdown_timeout_ms=job.shutdown_ms,
        drain_ms=plan.drain_ms,
        drain_signal=None,
        coordinator_timeout_ms=COORDINATOR_TIMEOUT_MS,
        outcome_timeout_ms=COORDINATOR_TIMEOUT_MS,
        fence_ms=job.fence_ms,
        signals=(),
        incarnation=f"{incarnation:032x}",
        environment={},
    )


class Ports:
    """Stands for `PortReserver`."""

    def __init__(self, process: AgentProcess) -> None:
        self._process = process

    def reserve(self) -> int:
        if self._process.world.has_no_port():
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return self._process.world.next_port()

    def close(self) -> None:
        """Nothing is open."""


class Outputs:
    """Stands for `WorkerOutputs`: workers write nothing."""

    def __init__(self) -> None:
        self.folder = SimpleNamespace(
            path=None, is_temporary=True, close=lambda: None, end_round=lambda: None
        )

    def begin(self, order: object) -> None:
        """Nothing to make."""

    def open(self, order: object, local_rank: int, loop: object) -> WorkerOutput:
        silent: Any = Silence(loop)
        return WorkerOutput("", streams=[silent])

    def log_folder(self) -> None:
        """There is none."""

    async def finish(self) -> None:
        """Nothing to drain."""


class SlowJournal(MemoryJournal):
    """A journal that takes its time, as one on a disk does."""

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        loop = _running()
        if loop.journal_s:
            await asyncio.sleep(loop.rng.choice((0.0, loop.rng.uniform(0, loop.journal_s))))
        await super().append(records, now_ms)


class Silence:
    """Stands for the standard error of a worker."""

    is_file = False

    def __init__(self, loop: object) -> None:
        assert isinstance(loop, Loop)
        self._loop = loop

    def tail(self) -> str:
        return ""

    def silent_ms(self) -> int:
        return 1_000_000

    def hurry(self) -> None:
        """Nothing to read."""

    async def wait_end(self, limit_s: float) -> None:
        await asyncio.sleep(limit_s if self._loop.holds_stderr() else 0)

    async def catch_up(self, limit_s: float) -> None:
        await asyncio.sleep(0)


class Folder:
    """Stands for `OwnFolder`."""

    def __init__(self, spare: Callable[[], Path | None]) -> None:
        pass

    def path(self) -> Path:
        return Path("/nowhere")

    def socket_path(self, number: int, local_rank: int) -> str:
        return ""

    def note_logs(self, logs: Path) -> None:
        """Nothing to note."""

    def end_rounds(self, last: int) -> None:
        """Nothing to remove."""

    def remove(self) -> None:
        """Nothing to remove."""


class Files(FileThread):
    """Calls at once, or later in the event loop: the real class, without its thread."""

    def submit(self, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        busy_s = loop.threads_busy_s()
        if busy_s:
            loop.call_later(busy_s, call)
        else:
            call()


def _new_supervisor(
    agent: Agent,
    host: Helper,
    consoles: object,
    tasks: asyncio.TaskGroup,
    kind: type[Supervisor],
) -> Supervisor:
    outputs: Any = Outputs()
    helper: Any = host
    return kind(
        host=helper,
        launch=agent.settings.launch,
        job_id=agent.settings.job_id,
        environment=agent.settings.environment,
        variables=agent.variables,
        post=agent.post,
        tasks=tasks,
        outputs=outputs,
        is_wanted=agent.is_wanted,
        began=agent.log.round_began,
    )


class Recorder:
    """Stands for the loggers of all modules."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, logger: Logger, method: str) -> Callable[..., None]:
        """Return the method of a logger that notes an event."""

        def note(event: str, **fields: object) -> None:
            self._world.logged(method, event, fields)

        return note


@contextmanager
def stand_ins(world: World) -> Iterator[None]:
    """Replace what reaches the machine, while the context is open."""
    virtual: Any = VirtualTime(world.schedule)
    recorder = Recorder(world)
    real_step = vars(stepper)["step"]

    def step(*args: Any) -> Any:
        world.compute()
        return real_step(*args)

    def random_bytes(count: int) -> bytes:
        return world.draw().to_bytes(8, "big").rjust(count, b"\0")[-count:]

    changes: tuple[Patch, ...] = (
        *((module, "time", virtual) for module in (clock, beginning, agent_service, agent_shell)),
        (exits, "time", virtual),
        (serve, "MemoryJournal", SlowJournal),
        (serve, "os", SimpleNamespace(urandom=random_bytes)),
        (connections, "time", virtual),
        (carrying, "time", virtual),
        (uplinks, "random", SimpleNamespace(uniform=lambda *ends: _running().rng.uniform(*ends))),
        (link, "random", SimpleNamespace(uniform=lambda *ends: _running().rng.uniform(*ends))),
        (connecting, "find_reason", _no_reason),
        (grpc.aio, "insecure_channel", lambda target, options: Channel(world.network, target)),
        (grpc.aio, "server", lambda interceptors=(), **_: world.serve(_running(), interceptors)),
        (stepper, "step", step),
        (life, "become_subreaper", lambda: None),
        (life, "new_supervisor", _new_supervisor),
        (supervisor, "FileThread", Files),
        (supervisor, "OwnFolder", Folder),
        (supervisor, "new_observers", lambda *args: ()),
        (own_folder, "remove_dead_folders", lambda folder: ()),
        (notices, "write_notices", lambda *args: None),
        (held_round, "PATIENCE_S", 0),
        (Logger, "__getattr__", lambda logger, method: recorder.get(logger, method)),
    )
    assert all(getattr(owner, name) is time for owner, name, _ in changes if name == "time")
    with patched(*changes):
        yield


async def _no_reason(channel: object, target: str, access: object) -> str:
    return ""


def _running() -> Loop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    return loop


DEFAULT_TIMING = Timing(start_due_ms=3_000)
