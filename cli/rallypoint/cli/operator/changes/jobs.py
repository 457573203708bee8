"""`rallypoint cancel`, `restart` and `resize`: changes of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.flags.flag import BadValue
from rallypoint.cli.flags.values import node_range
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import command

Job = Annotated[str, typer.Argument(metavar="JOB", help="the job", show_default=False)]
Reason = Annotated[
    str, typer.Option("--reason", "-r", metavar="TEXT", help="why; people see it later")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for one in (cancel, restart, resize):
        app.command()(one)


@command
def cancel(
    invocation: Invocation,
    job: Job,
    reason: Reason = "",
    run: Annotated[
        int, typer.Option("--run", metavar="N", min=0, help="only this run; 0: the latest")
    ] = 0,
) -> None:
    """End a job: its workers are stopped, and its agents exit.

    A job that has ended keeps its outcome, so the command may be repeated.
    """
    from rallypoint.cli.operator.changes.words import describe_cancel

    answer = invocation.client.cancel_job(job, run=run, reason=reason)
    invocation.output.print_result(answer, describe_cancel(job, run, answer.job))


@command
def restart(
    invocation: Invocation,
    job: Job,
    reason: Reason = "",
    round: Annotated[
        int, typer.Option("--round", metavar="N", min=0, help="only this round; 0: whichever runs")
    ] = 0,
) -> None:
    """Stop the workers of a job and start them again, without charging a restart.

    Between rounds it ends the pause.
    """
    from rallypoint.cli.operator.changes.words import describe_restart

    answer = invocation.client.restart_job(job, round=round, reason=reason)
    invocation.output.print_result(answer, describe_restart(job, round, answer.job))


@command
def resize(
    invocation: Invocation,
    job: Job,
    nodes: Annotated[
        str,
        typer.Argument(metavar="[N|MIN:MAX]", help="how many nodes it takes", show_default=False),
    ] = "",
    max_restarts: Annotated[
        int,
        typer.Option(
            "--max-restarts",
            metavar="N",
            min=-1,
            max=2**31 - 1,
            help="restarts that the whole run may use",
            show_default=False,
        ),
    ] = -1,
) -> None:
    """Change how many nodes a job takes, or how many restarts, until its run ends.

    A round with too few or too many nodes is stopped and begins again with those that fit. With
    more room nodes join as they come. The agents' own flags do not change.
    """
    from rallypoint.cli.operator.changes.words import describe_resize
    from rallypoint.v1 import job_service_pb2 as jobs_pb2

    if not nodes and max_restarts < 0:
        raise CommandFailed("give N, MIN:MAX or --max-restarts N", EXIT_USAGE)
    update = jobs_pb2.JobUpdate()
    if nodes:
        try:
            update.min_nodes, update.max_nodes = node_range(nodes)
        except (BadValue, ValueError) as error:  # ValueError: more than any number of the contract
            raise CommandFailed(f"nodes: {error}", EXIT_USAGE) from None
    if max_restarts >= 0:
        update.max_restarts = max_restarts
    answer = invocation.client.update_job(job, update)
    invocation.output.print_result(answer, describe_resize(job, update, answer.job))
