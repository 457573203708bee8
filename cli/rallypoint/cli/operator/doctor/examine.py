"""Goes from one check to the next, as long as the one before leaves something to check."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rallypoint.cli.operator.doctor.checks import coordinator, encryption, machine, network
from rallypoint.cli.operator.doctor.facts import (
    Endpoint,
    Heard,
    Listener,
    Reach,
    Refusal,
    Speech,
    Wish,
)
from rallypoint.cli.operator.doctor.findings import Finding
from rallypoint.cli.operator.doctor.probes.coordinator import CALL_S_MAX, ask
from rallypoint.cli.operator.doctor.probes.encryption import shake_hands, speaks_tls
from rallypoint.cli.operator.doctor.probes.listeners import find_listeners
from rallypoint.cli.operator.doctor.probes.machine import read_machine, read_software
from rallypoint.cli.operator.doctor.probes.network import (
    CONNECT_S_MAX,
    LOOKUP_S_MAX,
    connect,
    is_own,
    listen,
    look_up,
)
from rallypoint.cli.operator.doctor.probes.wish import read_wish
from rallypoint.wire.access import Access


def examine_coordinator(endpoint: Endpoint, access: Access, limit_s: float) -> Iterator[Finding]:
    """Yield the findings about one coordinator; a problem ends them.

    Args:
        endpoint: where it should be.
        access: how this side proves who it is.
        limit_s: longest wait for one answer; most probes wait less.
    """
    wish = read_wish(access)
    lookup = look_up(endpoint.host, min(LOOKUP_S_MAX, limit_s))
    yield from network.check_name(lookup)
    if not lookup.addresses:
        return
    attempts = connect(lookup, endpoint.port, min(CONNECT_S_MAX, limit_s))
    yield from network.check_connection(endpoint, attempts)
    opened = next((one for one in attempts if one.reach is Reach.OPEN), None)
    if opened is None:
        return
    at = Endpoint(opened.address, endpoint.port)
    heard = _hear(at)
    listeners: list[Listener] = find_listeners(at.port) if is_own(at.host) else []
    yield from network.check_listener(endpoint, heard, listeners)
    if heard.speech not in (Speech.HTTP2, Speech.TLS):
        return
    own_s = time.time()  # noqa: TID251  certificates are dated by wall clocks
    yield from encryption.check_own(wish, own_s)
    if wish.error:
        return
    is_agreed = wish.is_tls == (heard.speech is Speech.TLS)
    yield from encryption.check_agreement(wish, heard.speech)
    if not is_agreed:
        return
    if wish.is_tls:
        shake = shake_hands(wish, at, endpoint.host)
        yield from encryption.check_handshake(wish, endpoint.host, shake, own_s)
        if not shake.is_good:
            return
    is_exposed = network.is_exposed(attempts, listeners)
    yield from _examine_service(endpoint, access, wish, limit_s, is_exposed=is_exposed)


def _hear(at: Endpoint) -> Heard:
    """Return what listens at an address. A gRPC server with TLS hangs up on what is not TLS."""
    heard = listen(at)
    if heard.speech is Speech.OTHER and not heard.words and speaks_tls(at):
        return Heard(Speech.TLS)
    return heard


def _examine_service(
    endpoint: Endpoint, access: Access, wish: Wish, limit_s: float, *, is_exposed: bool
) -> Iterator[Finding]:
    answer = ask(access, endpoint, min(CALL_S_MAX, limit_s))
    if isinstance(answer, Refusal):
        yield from coordinator.check_token_file(wish)
        yield from coordinator.check_refusal(answer, wish)
        return
    yield from coordinator.check_about(answer)
    yield from coordinator.check_caller(answer, wish, is_exposed=is_exposed)
    yield from coordinator.check_version(answer, read_software())
    yield from coordinator.check_clock(answer)


def examine_machine() -> Iterator[Finding]:
    """Yield the findings about this host."""
    yield from machine.check_machine(read_machine())
