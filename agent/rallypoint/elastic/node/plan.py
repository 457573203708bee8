"""What a node brings into a job, and the settings of its agent that follow from it."""

from __future__ import annotations

import os
import socket

from msgspec import Struct

from rallypoint.agent.helper.leftovers import AGENT_MARK_ENV, compute_mark
from rallypoint.agent.hosting.decision import Hosting
from rallypoint.agent.hosting.keeper import Keeper
from rallypoint.agent.launch.options import JobOptions
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.session.program import describe_program, find_user
from rallypoint.agent.settings import Settings
from rallypoint.agent.torchelastic.variables import SIGNALS_ENV
from rallypoint.agent.workers.environ import Launch, find_python, shown_command
from rallypoint.wire.access import PLAIN, from_environment
from rallypoint.wire.job_secret import with_job_secret
from rallypoint.wire.local_token import with_local_token


class Plan(Struct, frozen=True, kw_only=True):
    """What a node brings into a job."""

    coordinator: str | None
    """host:port, or those of several with commas in between; None: a built-in one."""
    hosting: Hosting | None = None
    """How a node hosts the coordinator; None: it was started before, or is built in."""
    job_id: str
    min_nodes: int
    max_nodes: int
    options: JobOptions
    workers: int
    role: str
    local_addr: str | None
    """Address of this node for workers elsewhere; None: it is found."""
    master_port: int
    """Port that this node offers for rank 0's store; 0: a free one in every round."""
    program: str
    """Name of what the workers run, for readers of the job; compared between nodes."""
    launch: Launch
    output: OutputSpec
    environment: dict[str, str]
    """What workers inherit."""
    signals: str
    """Names of the signals that the program handles, for the workers' environment."""

    def check_preload(self, launch: Launch | None) -> None:
        """Refuse to preload for workers that no process can fork.

        Args:
            launch: how each worker starts; None: the program starts them itself.

        Raises:
            ValueError: with what to do.
        """
        if self.options.preloaded() is None:
            return
        function = None if launch is None else launch.function
        if function is None:
            text = "preload: only functions can be forked here; for a script, use rallypoint agent"
            raise ValueError(text)
        if function.is_forked:
            text = 'preload: a forked worker is a copy, with its imports; use start_method="spawn"'
            raise ValueError(text)

    def settings(self) -> Settings:
        """Return the settings of an agent; a built-in coordinator has no address yet."""
        incarnation, host = os.urandom(16).hex(), socket.gethostname()
        access = PLAIN
        if self.coordinator is not None:
            access = from_environment(self.environment)
            if self.hosting is None:
                access = with_local_token(access, self.coordinator)
            else:
                access = with_job_secret(access, self.environment)
        options, launch = self.options, self.launch
        return Settings(
            coordinator=self.coordinator or "",
            access=access,
            keeper=None if self.hosting is None else Keeper(self.hosting, access),
            is_standalone=self.coordinator is None,
            job_id=self.job_id,
            spec=options.spec(min_nodes=self.min_nodes, max_nodes=self.max_nodes),
            workers=self.workers,
            role=self.role,
            node_name=options.node_name or host,
            node_name_explicit=bool(options.node_name),
            node_rank=options.rank,
            address=self.local_addr or "",
            host_name=host,
            labels={},
            launch_id="",
            launch=launch,
            program=describe_program(
                self.program,
                launch.args,
                is_module=False,
                user=find_user(self.environment, os.getuid()),
                may_differ=True,  # heterogeneous jobs have always been possible in this API
                worker_command=shown_command(launch, python=find_python(self.environment)),
            ),
            output=self.output,
            logs_plugin=None,
            shutdown_timeout_ms=options.shutdown_timeout,
            drain_ms=0,
            drain_signal=None,
            coordinator_timeout_ms=options.coordinator_timeout_ms,
            outcome_timeout_ms=options.outcome_timeout,
            fence_ms=options.fence_after,
            signals=(),  # their handlers belong to the program
            incarnation=incarnation,
            environment={
                **self.environment,
                AGENT_MARK_ENV: compute_mark(incarnation),
                SIGNALS_ENV: self.signals,
            },
            preload=options.preloaded(),
        )
