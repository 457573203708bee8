"""What a node's rounds use, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.inputs import Input
from rallypoint.agent.evidence.watch import ProgressWatch
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.exits import ExitReports
from rallypoint.agent.round.helper_watch import HelperWatch
from rallypoint.agent.round.marks import MarkPipe
from rallypoint.agent.round.notices import NoticeWriter
from rallypoint.agent.round.own_folder import Folders, OwnFolder
from rallypoint.agent.torchelastic.error_watch import ErrorWatch
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin
from rallypoint.base.file_thread import FileThread

if TYPE_CHECKING:  # a node that preloads nothing loads nothing of it
    from rallypoint.agent.preload.preloader import Preloader


class NodeParts(Struct, frozen=True):
    """The parts of one node."""

    # From the agent.
    launch: Launch
    """The command line of a worker."""
    job_id: str
    variables: Callable[[], Iterable[tuple[str, str]]]
    """Further variables of ours, as they are when a round starts."""
    post: Callable[[Input], None]
    """Takes inputs of the core, in the event loop."""
    is_wanted: Callable[[int], bool]
    """Whether a round still has to start or keep running."""
    began: Callable[[RunOrder], None]
    """Learns that the workers of a round were requested."""
    tasks: asyncio.TaskGroup
    """Runs what takes time."""
    outputs: WorkerOutputs
    """Where the workers' output goes."""
    plugin: LogsPlugin | None
    """Assigns where the workers of a round write; None: `outputs` does."""

    # From the supervisor.
    helper: HelperWatch
    files: FileThread
    """Makes the folders and opens the files of a round."""
    own: OwnFolder
    folders: Folders
    """Removes what a round leaves in both."""
    evidence_files: FileThread
    """Reads the files of armed workers."""
    watch: ProgressWatch
    """Finds out whether they make progress."""
    notices: NoticeWriter
    marks: MarkPipe
    """Hears which milestones the workers reach."""
    errors: ErrorWatch
    """Finds the errors that running workers record, by worker id."""
    exits: ExitReports
    preloader: Preloader | None
    """Lets workers be forked; None: all start by themselves."""
