"""`rallypoint doctor`: everything that can keep this host from a coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

from rallypoint.base.exit_codes import EXIT_FAILED
from rallypoint.cli.operator.doctor import coordinator, encryption, network
from rallypoint.cli.operator.doctor.findings import Finding, Level, Report
from rallypoint.cli.operator.doctor.machine import examine_machine
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, option
from rallypoint.cli.operator.reaching import CONNECT_S_MAX, LOOK_UP_S_MAX, no_sigpipe
from rallypoint.wire.access import Access

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


@Command
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
    report = Report(invocation.output)
    endpoints = [] if is_local else invocation.target.endpoints.split(",")
    for text in endpoints:
        found = examine_coordinator(text, invocation.access, limit_s=invocation.timeout_s)
        with no_sigpipe():
            report.add(text, found, note=describe_source(invocation.target.source))
    report.add(HOST, examine_machine())
    return EXIT_FAILED if report.end() else 0


def examine_coordinator(endpoint: str, access: Access, limit_s: float) -> Iterator[Finding]:
    """Yield the findings about one coordinator; a problem ends them.

    Args:
        endpoint: `host:port`, where it should be.
        access: how this side proves who it is.
        limit_s: longest wait for one answer; most probes wait less.
    """
    for finding in _examine(network.read_endpoint(endpoint), access, limit_s):
        yield finding
        if finding.level is Level.PROBLEM:
            return


def _examine(endpoint: network.Endpoint, access: Access, limit_s: float) -> Iterator[Finding]:
    """Yield the findings. Each relies on those before it, so the caller stops at a problem."""
    lookup = network.look_up(endpoint.host, min(LOOK_UP_S_MAX, limit_s))
    yield network.check_name(lookup)
    attempts = network.connect(lookup.addresses, endpoint.port, min(CONNECT_S_MAX, limit_s))
    yield network.check_connection(endpoint, attempts)
    at = network.Endpoint(attempts[-1].address, endpoint.port)
    heard = encryption.listen(at)
    listeners = network.find_listeners(at.port) if network.is_own(at.host) else []
    yield from network.check_listener(endpoint, heard, listeners)
    own_s = time.time()  # noqa: TID251  certificates are dated by wall clocks
    yield from encryption.check_own(access, own_s)
    yield from encryption.check_agreement(access, heard.speech)
    if access.uses_tls:
        shake = encryption.shake_hands(access, at, endpoint.host)
        yield encryption.check_handshake(access, endpoint.host, shake, own_s)
    answer = coordinator.ask(access, endpoint, limit_s)
    if isinstance(answer, Finding):
        yield from coordinator.check_token_file(access)
        yield answer
        return
    yield coordinator.check_about(answer)
    is_exposed = network.is_exposed(at.host, listeners)
    yield from coordinator.check_caller(answer, access, is_exposed=is_exposed)
    yield coordinator.check_version(answer)
    yield coordinator.check_clock(answer)
