"""`rallypoint cancel`, `restart` and `resize`: changes of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.base.values import BadValue
from rallypoint.cli.flags.values import node_range
from rallypoint.cli.operator.changes.options import (
    IsWaiting,
    Reason,
    Wait,
    WaitLimit,
    read_wait,
)
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, Job, argument, option

if TYPE_CHECKING:
    from rallypoint.cli.operator.changes.goals import Goal
    from rallypoint.client import Client


@Command
def cancel(
    invocation: Invocation,
    job: Job,
    reason: Reason = "",
    run: Annotated[
        int, option("--run", metavar="N", min=0, help="only this run; 0: the latest")
    ] = 0,
    is_forced: Annotated[
        bool, option("--force", help="do not wait for silent nodes: count them as lost")
    ] = False,
    is_waiting: IsWaiting = False,
    wait_timeout: WaitLimit = None,
) -> None:
    """End a job: its workers are stopped, and its agents exit.

    A job that has ended keeps its outcome, so you can repeat the command. If the latest run is not
    that of --run, nothing changes, and the exit code is 1. --wait waits until every agent has left.

    --force does not wait for nodes that have missed two heartbeats, and lets new agents take their
    names at once. It stops no worker on a silent node: if the node is only cut off, its workers run
    until it reaches the coordinator, or until --fence-after ends them. The next round waits for
    --fence-after. If the job has none, make sure that the silent hosts are down.
    """
    from rallypoint.cli.operator.changes.goals import RunEnds
    from rallypoint.cli.operator.changes.words import describe_cancel

    answer = invocation.client.cancel_job(
        job, run=run, reason=reason, give_up_silent_nodes=is_forced
    )
    text = describe_cancel(job, run, answer.job, is_forced=is_forced)
    _check_latest(invocation, answer, text, is_latest=run in (0, answer.job.run))
    goal = RunEnds(answer.job.run) if answer.job.job_id else None
    wait = read_wait(is_waiting=is_waiting, limit_s=wait_timeout)
    _finish(invocation, answer, text, goal, wait)


@Command
def restart(
    invocation: Invocation,
    job: Job,
    reason: Reason = "",
    round: Annotated[
        int, option("--round", metavar="N", min=0, help="only this round; 0: whichever runs")
    ] = 0,
    is_waiting: IsWaiting = False,
    wait_timeout: WaitLimit = None,
) -> None:
    """Stop the workers of a job and start them again, without charging a restart.

    Between rounds it ends the pause. If the latest round is not that of --round, nothing is done,
    and the exit code is 1. --wait: until the workers of the next round run.
    """
    from rallypoint.cli.operator.changes.goals import RoundStarts
    from rallypoint.cli.operator.changes.words import describe_restart

    answer = invocation.client.restart_job(job, round=round, reason=reason)
    text = describe_restart(job, round, answer.job)
    _check_latest(invocation, answer, text, is_latest=round in (0, answer.job.round))
    goal = RoundStarts(answer.job.run, answer.job.round) if answer.job.job_id else None
    wait = read_wait(is_waiting=is_waiting, limit_s=wait_timeout)
    _finish(invocation, answer, text, goal, wait)


@Command
def resize(
    invocation: Invocation,
    job: Job,
    nodes: Annotated[
        str,
        argument("NODES", help="how many nodes it takes: N or MIN:MAX"),
    ] = "",
    reason: Reason = "",
    max_restarts: Annotated[
        int,
        option(
            "--max-restarts",
            metavar="N",
            min=-1,
            max=2**31 - 1,
            help="restarts that the whole run may use",
        ),
    ] = -1,
    is_forced: Annotated[
        bool, option("--force", help="stop the workers even if nodes are missing")
    ] = False,
    is_waiting: IsWaiting = False,
    wait_timeout: WaitLimit = None,
) -> None:
    """Change how many nodes a job takes, or how many restarts, until its run ends.

    A round with too few or too many nodes is stopped, and a new one begins with those that fit. If
    fewer than MIN are connected, this needs --force. If there is more room, nodes join as they
    come. The flags of the agents stay as they are. --wait waits until a round of that size runs.
    """
    from rallypoint.cli.operator.changes.goals import RoundFits
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
    answer = invocation.client.update_job(job, update, reason=reason, require_nodes=not is_forced)
    goal = RoundFits(answer.job.run, update) if nodes and answer.job.job_id else None
    wait = read_wait(is_waiting=is_waiting, limit_s=wait_timeout)
    _finish(invocation, answer, describe_resize(job, update, answer.job), goal, wait)


def _check_latest(invocation: Invocation, answer: Any, text: str, *, is_latest: bool) -> None:
    """Fail if the run or round that the user means is not the latest: nothing was done.

    Raises:
        CommandFailed: with the text.
    """
    if is_latest or not answer.job.job_id:
        return
    if invocation.output.is_json:
        invocation.output.print_json(answer)
    raise CommandFailed(text)


def _finish(invocation: Invocation, answer: Any, text: str, goal: Goal | None, wait: Wait) -> None:
    """Print what was done, and wait for it.

    Args:
        invocation: of the command.
        answer: of the coordinator, with the job as it was then.
        text: what was done, in a line.
        goal: what was asked for; None: nothing that one could wait for.
        wait: what the options say.
    """
    if goal is None or not wait.is_wanted:
        invocation.output.print_result(answer, text)
        return
    from rallypoint.cli.operator.changes.waiting import wait_for

    job_id: str = answer.job.job_id
    if not invocation.output.is_json:
        invocation.output.print_line(text)
    try:
        wait_for(invocation, job_id, goal, wait.limit_s)
    finally:
        if invocation.output.is_json:
            _renew(invocation.client, job_id, answer)
            invocation.output.print_json(answer)


def _renew(client: Client, job_id: str, answer: Any) -> None:
    """Show the job in an answer as it is now, if it can be read."""
    from rallypoint.client.errors import RallypointError, UnknownJob
    from rallypoint.v1 import job_pb2

    try:
        now = client.get_job(job_id, view=job_pb2.JOB_VIEW_SUMMARY)
        answer.job.CopyFrom(now.summary)
    except UnknownJob:
        answer.ClearField("job")
    except RallypointError:
        return  # as it was
