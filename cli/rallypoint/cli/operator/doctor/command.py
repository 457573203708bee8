"""`rallypoint doctor`: everything that can keep this host from a coordinator."""

from __future__ import annotations

from typing import Annotated

from rallypoint.base.exit_codes import EXIT_FAILED
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import command, option

HOST = "this host"
OPTION = "--coordinator"


def describe_source(source: str) -> str:
    """Return why this coordinator is checked; empty if the user has just named it.

    Args:
        source: an option, a variable or a context; empty: none of them.
    """
    if not source:
        return "nothing names another one: -c HOST:PORT"
    return "" if source == OPTION else f"from {source}"


@command
def doctor(
    invocation: Invocation,
    is_local: Annotated[
        bool, option("--local", help="check this host alone, and no coordinator")
    ] = False,
) -> int:
    """Check the way to a coordinator, and this host.

    It looks up the name, connects, checks TLS, certificates, the token and its role, versions and
    clocks, and then what this host's kernel and limits allow: open files, shared memory, ports,
    system calls and processes. It changes nothing.

    Exit code 1 when there is a problem; warnings do not count.
    """
    from rallypoint.cli.operator.doctor.examine import examine_coordinator
    from rallypoint.cli.operator.doctor.machine import examine_machine
    from rallypoint.cli.operator.doctor.report import Report
    from rallypoint.cli.operator.reaching import no_sigpipe

    report = Report(invocation.output)
    endpoints = [] if is_local else invocation.target.endpoints.split(",")
    for text in endpoints:
        found = examine_coordinator(text, invocation.access, limit_s=invocation.timeout_s)
        with no_sigpipe():
            report.add(text, found, note=describe_source(invocation.target.source))
    report.add(HOST, examine_machine())
    return EXIT_FAILED if report.end() else 0
