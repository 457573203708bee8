"""The settings of an agent, and the listener that it informs."""

from __future__ import annotations

import signal
from collections.abc import Callable

from msgspec import Struct

from rallypoint.agent.core.leaving.away import Absence
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.torchelastic.events import EventLog
from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.agent.torchelastic.logs_plugin import PluginSpec
from rallypoint.agent.workers.environ import Launch
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2


class Settings(Struct, frozen=True, kw_only=True):
    """How an agent is started."""

    coordinator: str
    """host:port"""
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


class Listener(Struct, frozen=True):
    """Informs the person who started the agent; nothing here may block for long."""

    finished: Callable[[agent_pb2.Finished, LastRound], None]
    """Receives the outcome of the run, and how the last round's workers ended on this node."""
    disconnected: Callable[[Absence], None]
    """Called when the session is lost, and again now and then until there is one."""
    events: EventLog | None = None
    """Records the events of torch's own agent; None without a request for them."""
