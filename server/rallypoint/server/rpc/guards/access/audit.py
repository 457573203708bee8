"""Audit lines: who has changed something, joined a job, was refused, or lost a stream.

A line has names, never a token. Refusals of one host are limited, so that a faulty program does not
fill the log: after the limit there is one line a minute with their number.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.rpc.guards.access.caller import Caller
from rallypoint.server.rpc.guards.limits import HOSTS_MAX
from rallypoint.server.rpc.guards.peers import host_of

log = get_logger()

REFUSALS_PER_MINUTE_MAX = 30
"""Lines about refusals of one host."""
MINUTE_S = 60.0
NO_CALL = "NO_CALL"
"""Outcome of a connection that has ended without a call."""
HINT = "no certificate, or one of another authority, or no TLS; or only a probe"
"""What such a connection was."""
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


class _Refused(Struct):
    """The refusals of a host in a minute."""

    since_s: float
    lines: int = 0
    hidden: int = 0


class Audit:
    """Writes audit lines."""

    def __init__(self, clock_s: Callable[[], float], *, notes_allowed: bool = True) -> None:
        """Begin.

        Args:
            clock_s: returns monotonic time.
            notes_allowed: whether calls that are allowed have lines.
        """
        self._clock_s = clock_s
        self._notes_allowed = notes_allowed
        self._refused: dict[str, _Refused] = {}
        """By host; the first to be refused is the first one."""

    def allow(self, call: Call, caller: Caller, outcome: str) -> None:
        """Note a call that was allowed; `outcome` is how it has ended."""
        if self._notes_allowed:
            log.info("audit", **_show(call, (caller,)), outcome=outcome)

    def refuse(self, call: Call, callers: tuple[Caller, ...], outcome: str) -> None:
        """Note a call that was refused; `outcome` says why."""
        self._warn(call.host, **_show(call, callers), outcome=outcome)

    def revoke(self, call: Call, caller: Caller, outcome: str) -> None:
        """Note a stream that was let in and ends: its caller is refused by now."""
        shown = _show(call, (caller,))
        self._warn(call.host, **shown, outcome=outcome, effect="stream_ended")

    def note_no_call(self, peer: str) -> None:
        """Note a connection that has ended without a call."""
        self._warn(host_of(peer), caller="unknown", peer=peer, outcome=NO_CALL, hint=HINT)

    def note_no_calls(self, count: int) -> None:
        """Note such connections whose peers are not known."""
        log.warning("audit", caller="unknown", connections=count, outcome=NO_CALL, hint=HINT)

    def _warn(self, host: str, **shown: str) -> None:
        """Write a line, if the host has not had too many."""
        self.flush()
        refused = self._refused.get(host)
        if refused is None:
            refused = self._refused[host] = _Refused(self._clock_s())
            if len(self._refused) > HOSTS_MAX:
                self._close(next(iter(self._refused)))
        if refused.lines >= REFUSALS_PER_MINUTE_MAX:
            refused.hidden += 1
            return
        refused.lines += 1
        log.warning("audit", **shown)

    def flush(self) -> None:
        """Note the refusals that had no lines, of minutes that are over."""
        now_s = self._clock_s()
        while self._refused:
            host, refused = next(iter(self._refused.items()))
            if now_s - refused.since_s < MINUTE_S:
                return
            self._close(host)

    def close(self) -> None:
        """Note all that had no lines: the coordinator ends."""
        for host in tuple(self._refused):
            self._close(host)

    def _close(self, host: str) -> None:
        refused = self._refused.pop(host)
        if refused.hidden:
            log.warning("audit_shortened", host=host, more_refusals=refused.hidden)


def _show(call: Call, callers: tuple[Caller, ...]) -> dict[str, str]:
    """Return the fields of a line. A list has commas: names are plain."""
    shown = {
        "caller": ",".join(caller.name for caller in callers) or "unknown",
        "role": ",".join(role.value for caller in callers for role in caller.roles),
        "by": ",".join(caller.proof.value for caller in callers),
        "method": call.method.rpartition("/")[2],
        "peer": call.peer,
        "job_id": call.job_id[:JOB_CHARS_MAX],
    }
    return {name: text for name, text in shown.items() if text}
