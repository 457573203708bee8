"""The settings of an agent, and its callbacks."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.agent.core.leaving.away import Absence
from rallypoint.agent.evidence.progress import Limits
from rallypoint.agent.hosting.keeper import Keeper
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.torchelastic.events import EventLog
from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.agent.torchelastic.logs_plugin import PluginSpec
from rallypoint.base.limits import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.access import PLAIN, Access, to_environment
from rallypoint.wire.durations import to_ms

if TYPE_CHECKING:
    from rallypoint.agent.preload.command import Preload

CAPABILITIES = (agent_pb2.CAPABILITY_NOTICES, agent_pb2.CAPABILITY_EVIDENCE)
"""What an agent can do beyond its protocol version."""
PATIENCE_MS_MAX = 5_000
"""How long the nodes of a job may start one after another until one of them says that the node that
hosts the coordinator is missing."""


class Settings(Struct, frozen=True, kw_only=True):
    """How an agent is started."""

    coordinator: str
    """host:port, or those of several with commas in between. The agent tries all in turn."""
    access: Access = PLAIN
    """How the agent proves who it is, and its workers verify the coordinator."""
    is_standalone: bool
    """The coordinator is built in: it runs in this process."""
    job_id: str
    spec: job_pb2.JobSpec
    workers: int
    role: str
    node_name: str
    """The requested name; the coordinator may assign another one."""
    node_name_explicit: bool
    """A person chose the name, so the coordinator uses it unchanged or refuses it."""
    node_rank: int | None
    address: str
    """At which other nodes reach this one; empty: found on the way to the coordinator."""
    host_name: str
    """For people who read a report."""
    labels: dict[str, str]
    launch_id: str
    launch: Launch
    program: agent_pb2.Program
    """What the coordinator and the readers of the job learn about the launch."""
    output: OutputSpec
    logs_plugin: PluginSpec | None
    """Assigns the destinations of output; None: `output` does."""
    shutdown_timeout_ms: int
    drain_ms: int
    """How long workers may run after a SIGTERM to the agent."""
    drain_signal: int | None
    """The signal that workers get when the node drains; None: none."""
    coordinator_timeout_ms: int
    outcome_timeout_ms: int
    fence_ms: int
    """How long workers may live without a confirmed heartbeat; 0: without a limit."""
    signals: tuple[signal.Signals, ...]
    """Signals that the agent handles and forwards; all others keep their default action."""
    incarnation: str
    """32 hexadecimal digits, drawn once per process."""
    environment: dict[str, str]
    """The workers' inherited environment: the agent's own at its start, with its mark."""
    preload: Preload | None = None
    """What one process imports, from which workers are forked; None: nothing."""
    keeper: Keeper | None = None
    """Keeps a coordinator at the address, if a node of the job hosts it. It has begun."""

    @property
    def limits_threads(self) -> bool:
        """Return whether several workers on this node get OMP_NUM_THREADS=1."""
        return self.launch.limits_threads and "OMP_NUM_THREADS" not in self.environment

    @property
    def hang_limits(self) -> Limits | None:
        """Return how long workers may make no progress; None: without a limit."""
        after_ms = to_ms(self.spec.hang_after)
        return Limits(after_ms, to_ms(self.spec.hang_first_after)) if after_ms else None

    @property
    def patience_ms(self) -> int:
        """Return how long after its start the agent finds it normal that no coordinator answers.

        With a short timeout, the line comes before the end of the agent.
        """
        return 0 if self.keeper is None else min(PATIENCE_MS_MAX, self.coordinator_timeout_ms // 2)

    def hello(
        self,
        *,
        address: str,
        node_name: str,
        run: int,
        coordinator_id: str,
        coordinator_durable: bool,
    ) -> agent_pb2.Hello:
        """Return a Hello without what the node holds.

        Args:
            address: at which other nodes reach this one.
            node_name: the name that the last Welcome gave; before the first, the requested one.
            run: of the last Welcome; 0 before the first.
            coordinator_id: of the last Welcome; empty before the first.
            coordinator_durable: of the last Welcome.
        """
        return agent_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            min_protocol_version=PROTOCOL_VERSION_MIN,
            capabilities=CAPABILITIES,
            launch_id=self.launch_id,
            job_id=self.job_id,
            spec=self.spec,
            node_name=node_name,
            node_name_explicit=self.node_name_explicit,
            address=address,
            host_name=self.host_name,
            local_world_size=self.workers,
            role=self.role,
            labels=self.labels,
            node_rank=self.node_rank,
            run=run,
            coordinator_id=coordinator_id,
            coordinator_durable=coordinator_durable,
            program=self.program,
        )

    def access_variables(self) -> tuple[tuple[str, str], ...]:
        """Return the variables by which workers verify the coordinator."""
        return tuple(to_environment(self.access).items())


class AgentCallbacks(Struct, frozen=True):
    """What an agent calls to inform the person who started it; nothing here may block for long."""

    finished: Callable[[agent_pb2.Finished, LastRound], None]
    """Receives the outcome of the run, and how the last round's workers ended on this node."""
    disconnected: Callable[[Absence], None]
    """Called when the session is lost, and again now and then until there is one."""
    events: EventLog | None = None
    """Records the events of torch's own agent; None without a request for them."""
    stepped: Callable[[], None] | None = None
    """Called after each step of the core, when its effects are carried out."""
