"""`rallypoint stacks`: what the workers of a job do."""

from __future__ import annotations

from typing import Annotated

from rallypoint.cli.operator.failures import NotFound
from rallypoint.cli.operator.hints import recommend
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, Job, option


@Command
def stacks(
    invocation: Invocation,
    job: Job,
    rank: Annotated[
        list[int] | None,
        option(
            "--rank", metavar="R", min=0, help="also show everything about this rank; repeatable"
        ),
    ] = None,
    last: Annotated[
        bool, option("--last", help="show the evidence that was taken last, and take none")
    ] = False,
) -> None:
    """Say what the workers of a job do at this moment, and which of them the others wait for.

    It asks every worker for the stacks of its threads and for its latest collectives, takes at most
    three seconds, and disturbs no worker. Ranks that do the same are shown together.
    """
    from rallypoint.cli.operator.views.stacks import render_evidence

    ranks = rank or ()
    client = invocation.client
    found = (client.get_evidence if last else client.take_evidence)(job, ranks=ranks)
    if invocation.output.is_json:
        invocation.output.print_json(found)
    elif found.HasField("evidence"):
        invocation.output.print(render_evidence(job, found.evidence, found.ranks))
    elif last:
        text = "no evidence of job {job} was taken; run {rallypoint} stacks {job}"
        raise NotFound(recommend(text, job=job))
    else:
        text = "no workers of job {job} run; see {rallypoint} explain {job}"
        raise NotFound(recommend(text, job=job))
