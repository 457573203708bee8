"""The way to the coordinator: its name, the connection, and what listens at the other end."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.base.addresses import is_loopback
from rallypoint.cli.operator.doctor import durations
from rallypoint.cli.operator.doctor.facts import (
    Attempt,
    Endpoint,
    Heard,
    Listener,
    Lookup,
    Reach,
    Speech,
)
from rallypoint.cli.operator.doctor.findings import Finding, ok, problem, warning
from rallypoint.wire.coordinators import describe_start

NAME, CONNECTION, LISTENER = "name", "connection", "listener"
SLOW_LOOKUP_S = 1.0
"""Every connection waits for the look-up; one that is well takes milliseconds."""
SLOW_CONNECTION_S = 0.5
"""Twice around the earth: the coordinator would miss heartbeats."""
SHOWN_MAX = 4
"""Addresses in one line."""


def check_name(lookup: Lookup) -> list[Finding]:
    """Judge whether the name of the host means an address."""
    host = lookup.host
    if not lookup.addresses:
        if not lookup.error:
            waited = durations.describe(lookup.took_s)
            text = f"the look-up of {host!r} has no answer after {waited}"
            return [
                problem(NAME, text, "check the name servers in /etc/resolv.conf, or use an address")
            ]
        return [problem(NAME, lookup.error, f"try: getent hosts {host}; or use an address")]
    if (host,) == lookup.addresses:
        return [ok(NAME, "an address")]
    text, took = f"{host} is {_join(lookup.addresses)}", durations.describe(lookup.took_s)
    if lookup.took_s > SLOW_LOOKUP_S:
        slow = f"{text}, but the look-up takes {took}"
        return [
            warning(NAME, slow, "check the name servers in /etc/resolv.conf, or use an address")
        ]
    return [ok(NAME, f"{text}, found in {took}")]


def check_connection(endpoint: Endpoint, attempts: Sequence[Attempt]) -> list[Finding]:
    """Judge whether the port can be reached, at any of the addresses of the host."""
    opened = next((one for one in attempts if one.reach is Reach.OPEN), None)
    if opened is None:
        return [_unreached(endpoint, attempts)]
    text = f"{_show(opened, endpoint)} answers in {durations.describe(opened.took_s)}"
    others = [one.address for one in attempts if one.reach is not Reach.OPEN]
    if others:
        text += f"; {_join(others)} does not"
    if opened.took_s > SLOW_CONNECTION_S:
        advice = "check the load of the network: heartbeats and restarts take at least as long"
        return [warning(CONNECTION, text, advice)]
    return [ok(CONNECTION, text)]


def _unreached(endpoint: Endpoint, attempts: Sequence[Attempt]) -> Finding:
    """Say why no address can be reached; the host that refuses says most."""
    order = (Reach.REFUSED, Reach.SILENT, Reach.UNREACHABLE)
    worst = min(attempts, key=lambda one: order.index(one.reach))
    where = _show(worst, endpoint)
    match worst.reach:
        case Reach.REFUSED:
            text = f"nothing listens on {where}"
            return problem(CONNECTION, text, f"check the port, or {describe_start(str(endpoint))}")
        case Reach.SILENT:
            text = f"{where} does not answer within {durations.describe(worst.took_s)}"
            advice = (
                f"check that the host is up, and that no firewall drops TCP port {endpoint.port}"
            )
            return problem(CONNECTION, text, advice)
        case _:
            text = f"{where} cannot be reached: {worst.error}"
            advice = f"check the network of this host: ip route get {worst.address}"
            return problem(CONNECTION, text, advice)


def check_listener(
    endpoint: Endpoint, heard: Heard, listeners: Sequence[Listener]
) -> list[Finding]:
    """Judge what listens, and whether more than one program does.

    Args:
        endpoint: of the coordinator.
        heard: what it answers.
        listeners: processes on the port, if it is a port of this host. Empty: unknown.
    """
    findings = []
    if len({one.pid or one.address for one in listeners}) > 1:
        shown = _join([_describe(one, with_address=True) for one in listeners])
        text = f"several programs listen on port {endpoint.port}: {shown}"
        advice = "end all but the coordinator, or give the coordinator another --port"
        findings.append(warning(LISTENER, text, advice))
    match heard.speech:
        case Speech.HTTP2 | Speech.TLS:
            return findings
        case Speech.HTTP1:
            what = f"a web server listens on {endpoint}; coordinators speak HTTP/2"
        case Speech.OTHER if heard.words:
            what = f"another program listens on {endpoint}; it sends {heard.words!r}"
        case Speech.OTHER:
            what = f"another program listens on {endpoint}; it closes the connection"
        case _:
            what = f"what listens on {endpoint} sends nothing"
    if len(listeners) == 1:
        what += f"; process {_describe(listeners[0])}"
    advice = "check the port of the coordinator: its log begins with it, and --coordinator takes it"
    return [*findings, problem(LISTENER, what, advice)]


def _describe(one: Listener, *, with_address: bool = False) -> str:
    name = f"{one.name} ({one.pid})" if one.pid else "one of another user"
    return f"{name} on {one.address}" if with_address else name


def _show(one: Attempt, endpoint: Endpoint) -> str:
    return str(Endpoint(one.address, endpoint.port))


def _join(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more


def is_exposed(attempts: Sequence[Attempt], listeners: Sequence[Listener]) -> bool:
    """Return whether other hosts may reach the coordinator too, as far as is known here.

    Args:
        attempts: to connect.
        listeners: processes on the port, if it is a port of this host. Empty: unknown.
    """
    reached = [one.address for one in attempts if one.reach is Reach.OPEN]
    addresses = [one.address for one in listeners] or reached
    return any(not is_loopback(address) for address in addresses)
