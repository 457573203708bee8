"""Audit lines: who has changed something, joined a job, was refused, or lost a stream.

A line has names, never a token. Lines about refusals and admissions are limited for each host,
those about changes never are.
"""

from __future__ import annotations

from urllib.parse import unquote

from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.access.caller import Caller
from rallypoint.server.access.usage.lines import Kind, Lines
from rallypoint.server.access.usage.peers import hosts_of

log = get_logger()

NO_CALL = "NO_CALL"
"""Outcome of connections that have ended without a call."""
HINT = "no certificate, or one of another authority, or no TLS; or only a probe"
"""What they were."""
JOB_CHARS_MAX = 128
"""Of a job's name in a line: a refused call may name anything."""


class Call(Struct):
    """A call, as its audit line shows it."""

    method: str
    """Its path."""
    peer: str
    """Of the client, also when another coordinator has forwarded the call."""
    host: str
    """That is connected: of the peer, or of the relay that has named it."""
    job_id: str = ""
    """Empty: no job, or all of them."""


class Audit:
    """Writes audit lines."""

    def __init__(self, lines: Lines, *, notes_allowed: bool = True) -> None:
        """Begin.

        Args:
            lines: counts those that each host causes.
            notes_allowed: whether calls that are allowed have lines.
        """
        self._lines = lines
        self._notes_allowed = notes_allowed

    def change(self, call: Call, caller: Caller, outcome: str) -> None:
        """Note a change that was allowed; `outcome` is how it has ended."""
        if self._notes_allowed:
            log.info("audit", **_show(call, (caller,)), outcome=outcome)

    def admit(self, call: Call, caller: Caller) -> None:
        """Note a session or a relay that was let in."""
        if self._notes_allowed and self._lines.allow(hosts_of(call.peer), Kind.ADMISSION):
            log.info("audit", **_show(call, (caller,)), outcome="allowed")

    def refuse(self, call: Call, callers: tuple[Caller, ...], outcome: str) -> None:
        """Note a call that was refused; `outcome` says why."""
        self._warn(call.peer, **_show(call, callers), outcome=outcome)

    def revoke(self, call: Call, caller: Caller, outcome: str) -> None:
        """Note a stream that was let in and ends: its caller is refused by now."""
        shown = _show(call, (caller,))
        self._warn(call.peer, **shown, outcome=outcome, effect="stream_ended")

    def note_no_calls(self, count: int) -> None:
        """Note so many connections that have ended without a call."""
        log.warning("audit", caller="unknown", connections=count, outcome=NO_CALL, hint=HINT)

    def _warn(self, of: str, **shown: str) -> None:
        """Write a line, if the host of a peer has not had too many."""
        if self._lines.allow(hosts_of(of), Kind.REFUSAL):
            log.warning("audit", **shown)


def _show(call: Call, callers: tuple[Caller, ...]) -> dict[str, str]:
    """Return the fields of a line. A list has commas: names are plain."""
    shown = {
        "caller": ",".join(caller.name for caller in callers) or "unknown",
        "role": ",".join(role.value for caller in callers for role in caller.roles),
        "by": ",".join(caller.proof.value for caller in callers),
        "method": call.method.rpartition("/")[2],
        "peer": unquote(call.peer),  # gRPC escapes the brackets of IPv6
        "job_id": call.job_id[:JOB_CHARS_MAX],
    }
    return {name: text for name, text in shown.items() if text}
