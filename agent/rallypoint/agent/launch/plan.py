"""What a node brings into a job, and the settings of its agent that follow from it."""

from __future__ import annotations

import os
import signal
import socket
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.helper.leftovers import AGENT_MARK_ENV, compute_mark
from rallypoint.agent.hosting.keeper import Keeper
from rallypoint.agent.launch.meeting_point import MeetingPoint
from rallypoint.agent.launch.options import JobOptions
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.round.environ import Launch, find_python, shown_command
from rallypoint.agent.session.program import describe_program, find_user
from rallypoint.agent.settings import Settings
from rallypoint.agent.torchelastic.logs_plugin import PluginSpec
from rallypoint.agent.torchelastic.variables import SIGNALS_ENV
from rallypoint.wire.access import Access, from_environment


class LaunchPlan(Struct, frozen=True, kw_only=True):
    """What a node brings into a job, the same for every way to launch."""

    meeting: MeetingPoint
    options: JobOptions
    min_nodes: int
    max_nodes: int
    workers: int = 1
    role: str = "default"
    address: str | None = None
    """Of this node, for workers elsewhere; None: it is found."""
    master_port: int = 0
    """Port that this node offers for rank 0's store; 0: a free one in every round."""
    labels: dict[str, str] = {}
    launch_id: str = ""
    launch: Launch = Launch("", (), limits_threads=False)
    """How each worker starts; without a script, the program starts them itself."""
    title: str = ""
    """Name of what the workers run, for readers of the job; compared between nodes. Empty: the
    script's."""
    arguments: tuple[str, ...] | None = None
    """Its arguments, for the same readers; None: those of `launch`."""
    may_differ: bool = True
    """Whether other nodes may run another program; torch's Python API has always allowed that."""
    output: OutputSpec = OutputSpec()
    logs_plugin: PluginSpec | None = None
    """Assigns the destinations of output; None: `output` does."""
    drain_ms: int = 0
    drain_signal: int | None = None
    signals: tuple[signal.Signals, ...] = ()
    """Those that the agent handles; none: they belong to the program around it."""
    signal_names: str = ""
    """Of the signals that are handled, for the workers' environment."""
    environment: dict[str, str] = {}
    """What workers inherit, and what says how the agent proves who it is."""

    def prove(self) -> Access:
        """Return how the agent proves who it is, by the environment.

        Raises:
            AccessFailed: a variable is wrong.
        """
        return self.meeting.prove(partial(from_environment, self.environment), self.environment)

    def settings(
        self, access: Access, *, target: str | None = None, keeper: Keeper | None = None
    ) -> Settings:
        """Return the settings of an agent.

        Args:
            access: how it proves who it is.
            target: host:port of the coordinator, if it is built in and already listens.
            keeper: lets the coordinator listen, on a node that may host it.
        """
        meeting, options = self.meeting, self.options
        launch = replace(self.launch, arming=options.evidence)
        incarnation, host = os.urandom(16).hex(), socket.gethostname()
        python = find_python(self.environment)
        return Settings(
            coordinator=target or meeting.coordinator or "",
            access=access,
            keeper=keeper,
            is_standalone=meeting.coordinator is None,
            job_id=meeting.job_id,
            spec=options.spec(min_nodes=self.min_nodes, max_nodes=self.max_nodes),
            workers=self.workers,
            role=self.role,
            node_name=options.node_name or host,
            node_name_explicit=bool(options.node_name),
            node_rank=options.rank,
            address=self.address or "",
            host_name=host,
            labels=self.labels,
            launch_id=self.launch_id,
            launch=launch,
            program=describe_program(
                self.title or launch.script,
                launch.args if self.arguments is None else self.arguments,
                is_module=launch.is_module,
                user=find_user(self.environment, os.getuid()),
                may_differ=self.may_differ,
                worker_command=shown_command(launch, python=python) if launch.script else (),
            ),
            output=self.output,
            logs_plugin=self.logs_plugin,
            shutdown_timeout_ms=options.shutdown_timeout,
            drain_ms=self.drain_ms,
            drain_signal=self.drain_signal,
            coordinator_timeout_ms=options.coordinator_timeout_ms,
            outcome_timeout_ms=options.outcome_timeout,
            fence_ms=options.fence_after,
            signals=self.signals,
            incarnation=incarnation,
            environment={
                **self.environment,
                AGENT_MARK_ENV: compute_mark(incarnation),
                SIGNALS_ENV: self.signal_names,
            },
            preload=options.preloaded(),
        )
