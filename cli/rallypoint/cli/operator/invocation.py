"""One call of a command: its options, what it prints to, and the client that it asks with."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.common import Common
from rallypoint.cli.operator.failures import CommandFailed, NotReached
from rallypoint.cli.operator.output import Output

if TYPE_CHECKING:
    from rallypoint.cli.operator.connection import Target
    from rallypoint.cli.operator.reads.left import LeftJobs
    from rallypoint.client import Client
    from rallypoint.client.errors import RallypointError
    from rallypoint.wire.access import Access

LEFT_SHOWN = 3
"""Jobs that are named in place of one that was not found."""


class Invocation:
    """What a command gets as its first argument."""

    def __init__(self, common: Common) -> None:
        """Connect when `client` is first used."""
        self.common = common
        self.output = Output(common.output)
        self._client: Client | None = None

    @property
    def timeout_s(self) -> float:
        """How long a call may take."""
        return self.common.timeout_s

    @cached_property
    def target(self) -> Target:
        """Return the coordinator that is asked.

        Raises:
            CommandFailed: it is named wrongly.
        """
        from rallypoint.cli.operator.connection import choose_target

        return choose_target(self.common, os.environ)

    @cached_property
    def access(self) -> Access:
        """Return how the command proves who it is. Its files are not read yet.

        Raises:
            CommandFailed: a variable about that is wrong.
        """
        from rallypoint.cli.operator.connection import choose_access
        from rallypoint.wire.access import AccessFailed

        try:
            return choose_access(self.common, self.target, os.environ)
        except AccessFailed as failed:
            raise CommandFailed(str(failed), EXIT_USAGE) from None

    @property
    def client(self) -> Client:
        """Return the client, once a coordinator has answered.

        Raises:
            CommandFailed: the coordinator is named wrongly, or nothing answers there.
        """
        if self._client is None:
            self.check_reachable()
            self._client = self.open_client(self.timeout_s)
        return self._client

    def reader(self, job_id: str = "") -> Client | LeftJobs:
        """Return the client, or what the coordinator has left when nothing answers.

        Args:
            job_id: the job to read; empty: all.

        Raises:
            CommandFailed: the coordinator is named wrongly; or nothing answers there, and it has
                left nothing about that job.
        """
        try:
            return self.client
        except NotReached as error:
            from rallypoint.cli.operator.reads.left import find_left

            left = find_left(self.target.endpoints)
            if not left.jobs:
                raise
            if job_id and job_id not in left.jobs:
                jobs = ", ".join(list(left.jobs)[:LEFT_SHOWN])
                advice = f"it has left no job {job_id}, but {jobs}"
                raise NotReached(error.problem, advice) from None
            self.output.note(f"{error.problem}; {left.describe(job_id)}")
            return left

    def explain(self, error: RallypointError, job_id: str = "") -> str:
        """Return the text of an error, with the next step; it may ask for near names."""
        from rallypoint.cli.operator.explanations import explain

        return explain(error, self._client, job_id)

    def check_reachable(self) -> None:
        """Read the files about access, connect to the coordinator, and hang up.

        Raises:
            CommandFailed: a file is of no use, or no coordinator answers.
        """
        from rallypoint.cli.operator.reaching import check_reachable
        from rallypoint.wire.access import AccessFailed
        from rallypoint.wire.credentials import Credentials

        try:
            Credentials(self.access)
        except AccessFailed as failed:
            raise CommandFailed(str(failed), EXIT_USAGE) from None
        try:
            note = self.output.note
            check_reachable(self.target.endpoints, self.access, self.timeout_s, note)
        except NotReached as error:
            raise NotReached(error.problem, self._advise()) from None

    def _advise(self) -> str:
        """Return what to do when no coordinator answers."""
        from rallypoint.cli.operator.hints import recommend
        from rallypoint.cli.operator.reads.here import find_here

        if self.target.source:
            return recommend("find out why: {rallypoint} doctor")
        found = find_here()
        return f"on this host: {found}" if found else "name another one: -c HOST:PORT"

    def open_client(self, limit_s: float, *, token: str = "", epoch: int = 0) -> Client:
        """Return another client, which the caller closes; it connects at its first call.

        Args:
            limit_s: longest call, and longest outage of a watch.
            token: of the worker for which it calls; empty: none.
            epoch: of the coordinator that has started that worker; 0: unknown.
        """
        from rallypoint.client.sync import Client

        return Client(
            self.target.endpoints, token=token, epoch=epoch, limit_s=limit_s, access=self.access
        )

    def close(self) -> None:
        """End all calls."""
        if self._client is not None:
            self._client.close()
