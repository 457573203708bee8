"""The gate: finds out who makes a call, and whether they may, when the call begins.

A call is unknown, or it has one caller or several: by its token, its client certificate, the token
of a worker. Each role counts for its own caller. A token that is shown must be valid, even if the
certificate would be enough. The messages of a stream are not checked; its caller is checked again
when the rules change, or a token expires.
"""

from __future__ import annotations

import asyncio
import glob
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import grpc

from rallypoint.base.limits import JOB_ID_BYTES_MAX
from rallypoint.server.access import refusals
from rallypoint.server.access.audit import Audit, Call
from rallypoint.server.access.caller import Caller, Proof, WorkerRound
from rallypoint.server.access.handshakes import Handshakes
from rallypoint.server.access.identities import (
    KEY,
    SHARD_KEY,
    Identities,
    certificate_names,
    shown_by,
)
from rallypoint.server.access.policy import CLOSED, POLICY, Row
from rallypoint.server.access.refusals import AccessRefused
from rallypoint.server.access.rules import Rules
from rallypoint.server.access.streams import Streams
from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.access.usage.callers import connected_peer
from rallypoint.server.access.usage.lines import Lines
from rallypoint.server.access.usage.peers import connected_host
from rallypoint.server.access.usage.quotas import HostRate
from rallypoint.server.contract.calls import Context, LimitExceeded
from rallypoint.server.contract.errors import to_status
from rallypoint.server.core.messages.inputs import Claim
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.wire.access import Role
from rallypoint.wire.credentials import TOKEN_KEY, WORKER_TOKEN_KEY

_SCHEME = "bearer"
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
"""Statuses of servicers that refuse a call because of who makes it."""
_NO_PROOF = (*_REFUSED, "INVALID_ARGUMENT")
"""Statuses that count as failed attempts of a worker whose token has an unknown signature. Others
can happen to a genuine one, such as UNAVAILABLE while its round is not known yet."""


class RuleSource(Protocol):
    """Has the rules that count now."""

    rules: Rules


class Workers(Protocol):
    """Knows the tokens of workers."""

    def __call__(self, claim: Claim) -> bool:
        """Return whether members of a round hold this token, which has an unknown signature."""


class Readers(Protocol):
    """Knows the rounds of jobs."""

    def __call__(self, round: WorkerRound) -> bool:
        """Return whether workers of a round may still read their job, as far as is known here."""


class Entry:
    """A call that is let in, or is about to be."""

    def __init__(self, gate: Gate, row: Row, call: Call) -> None:
        """Begin without callers."""
        self.call = call
        self.gate = gate
        self._row = row
        self.allowed: tuple[Caller, ...] = ()
        self.caller: Caller | None = None
        """The first caller that is allowed this call; None: not known yet."""
        self.is_forwarded = False
        self.is_claim = False
        """Its caller is a worker by a token of an unknown signature: perhaps it is none."""
        self.is_revoked = False
        """It was let in, and ends because its caller is refused by now."""
        self.worker: Caller | None = None
        """Who its worker token has proven when it began: that ends with the round."""
        self._job_id: str | None = None
        """The job that it may be about, or "" for all jobs; None: not known yet."""

    def admit(self, callers: tuple[Caller, ...]) -> None:
        """Keep the callers whose role allows the method.

        Raises:
            AccessRefused: when there is none.
        """
        needed = set(self._row.roles)
        self.allowed = tuple(caller for caller in callers if needed & set(caller.roles))
        if not self.allowed:
            raise refusals.role_not_allowed(callers, self._row.roles)
        self.caller = self.allowed[0]

    def require_job(self, job_id: str) -> None:
        """Check that the call may be about a job; an empty name stands for all jobs.

        Raises:
            AccessRefused: when no caller is allowed it.
        """
        job_id = job_id[: JOB_ID_BYTES_MAX + 1]  # of a longer one, that it is too long
        self.call.job_id = job_id
        if not self._row.has_job:
            return
        self._job_id = job_id
        fits = next((caller for caller in self.allowed if caller.may_touch(job_id)), None)
        if fits is None:
            raise refusals.job_not_allowed(self.allowed, job_id)
        self.caller = fits

    @property
    def holder(self) -> str:
        """Return the name of the token of its caller, if that is bound to jobs."""
        caller = self.caller
        is_bound = caller is not None and caller.proof is Proof.TOKEN and bool(caller.jobs)
        return caller.name if caller is not None and is_bound else ""

    @contextmanager
    def staying(self, context: Context) -> Iterator[None]:
        """Serve a stream; check its caller again when the rules change.

        Raises:
            AccessRefused: when the caller is refused by now.
        """

        def identify() -> tuple[Caller, ...]:
            return self.gate.identify_again(context, self._row, self.worker)

        # A round that is over ends no stream whose call looks at its worker itself.
        of_round = any(caller.round is not None for caller in self.allowed)
        is_of_worker = of_round and not self._row.checks_worker
        with self.gate.streams.holding(lambda: self.check(identify), is_of_worker=is_of_worker):
            yield

    def check(self, identify: Callable[[], tuple[Caller, ...]]) -> AccessRefused | None:
        """Return why a call that was let in would be refused now; None: it would not.

        Args:
            identify: returns who makes it, or raises AccessRefused.
        """
        try:
            if self.is_forwarded:  # the coordinator that the client has called checks the rest
                self.gate.require_round(self.allowed[0], self._row)
                return None
            self.admit(identify())
            if self._job_id is not None:
                self.require_job(self._job_id)
        except AccessRefused as refused:
            self.is_revoked = True
            return refused
        return None

    def note_joined(self) -> None:
        """Note that a node is let into its job."""
        assert self.caller is not None
        self.gate.audit.admit(self.call, self.caller)

    def sign(self, shard: int) -> str:
        """Return the metadata that says who has made this call, for the owner of a shard."""
        assert self.caller is not None
        call = self.call
        return self.gate.identities.sign(
            self.caller, method=call.method, shard=str(shard), job_id=call.job_id, peer=call.peer
        )


CURRENT: ContextVar[Entry | None] = ContextVar("entry", default=None)
"""The call that is served; None: the coordinator does not ask who calls."""


class Gate:
    """Lets calls in."""

    def __init__(
        self,
        source: RuleSource,
        handshakes: Handshakes | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        lines: Lines | None = None,
        audits: bool = True,
    ) -> None:
        """Let those in that the rules name.

        Args:
            source: of the rules.
            handshakes: notes connections without calls; None: there is no TLS.
            clock_s: returns monotonic time.
            lines: counts lines of the log; None: of this gate alone.
            audits: whether calls that are allowed have audit lines.
        """
        self.audit = Audit(lines or Lines(clock_s), notes_allowed=audits)
        self.identities = Identities(_unix_ms)
        self.worker_tokens: WorkerTokens | None = None
        """Of the journal; None: it is not open yet."""
        self.knows_worker: Workers = lambda claim: False
        self.may_read: Readers = lambda round: True
        self._source = source
        self._handshakes = handshakes
        self._attempts = HostRate(
            Limit.FAILED_ATTEMPTS_PER_HOST, "ATTEMPTS_PER_MINUTE_MAX", "ATTEMPTS_PER_MINUTE_MAX"
        )
        self._clock_s = clock_s
        self.streams = Streams()
        self._checked = source.rules
        """The rules by which all streams were let in, or checked again."""
        self._checked_ms = _unix_ms()

    def note_probe(self) -> None:
        """Note that this process connects to itself, and makes no call."""
        if self._handshakes is not None:
            self._handshakes.note_explained()

    async def look(self) -> None:
        """Do what is due once a second."""
        await self.check_streams()
        if self._handshakes is not None:
            self._handshakes.look(self.audit)

    def close(self) -> None:
        """Write the audit lines that are left: the coordinator ends."""
        if self._handshakes is not None:
            self._handshakes.close(self.audit)

    @contextmanager
    def entering(self, method: str, context: Context) -> Iterator[Entry | None]:
        """Let a call in, and note how it ends; None: anyone may make it.

        Args:
            method: its path.
            context: of the call.

        Raises:
            AccessRefused: when the call is not allowed.
            LimitExceeded: when the host has failed too often.
        """
        row = POLICY.get(method, CLOSED)
        peer = context.peer()
        if self._handshakes is not None:
            self._handshakes.note_call(connected_peer(context))
        if row.is_open:
            yield None
            return
        entry = Entry(self, row, Call(method, peer, connected_host(peer)))
        try:
            entry.admit(self._identify(entry, row, context))
            CURRENT.set(entry)
            yield entry
        except AccessRefused as refused:
            self.refuse(entry, refused)
            raise
        except BaseException as error:
            self._note_end(entry, row, _outcome(error, context))
            raise
        self._note_end(entry, row, "OK")

    async def check_streams(self) -> None:
        """End the streams that would be refused now, if that may have changed.

        Those of workers are checked each time: their rounds end.
        """
        rules, now_ms = self._source.rules, _unix_ms()
        expired = rules.has_expired(self._checked_ms, now_ms)
        if rules is self._checked and not expired:
            await self.streams.check(of_workers_alone=True)
            return
        await self.streams.check()
        self._checked, self._checked_ms = rules, now_ms  # else they are all checked again

    def identify_again(
        self, context: Context, row: Row, worker: Caller | None
    ) -> tuple[Caller, ...]:
        """Return who makes a call that was let in.

        Args:
            context: of the call.
            row: of its method.
            worker: who its worker token has proven; None: no one.

        Raises:
            AccessRefused: when it is not known any more, or what it has shown is not valid.
        """
        return self._add_worker(self._find(shown_by(context), context), worker, row, context)

    def _add_worker(
        self, found: list[Caller], worker: Caller | None, row: Row, context: Context
    ) -> tuple[Caller, ...]:
        """Return the callers with a worker, if there is one; without it if the others are enough.

        Raises:
            AccessRefused: when there are none, or its round is over, and there are no others.
        """
        if worker is not None:
            try:
                self.require_round(worker, row)
            except AccessRefused:
                if not found:
                    raise
            else:
                found.append(worker)
        if not found:
            raise refusals.token_missing(next(iter(certificate_names(context)), ""))
        return tuple(found)

    def require_round(self, caller: Caller, row: Row) -> None:
        """Check that a worker may still read; its servicer checks everything else that it does.

        Raises:
            AccessRefused: when its round, or its run, is over.
        """
        if caller.round is not None and not row.checks_worker and not self.may_read(caller.round):
            raise refusals.round_over(caller.round.number)

    def identify_certificate(self, context: Context) -> tuple[Caller, ...]:
        """Return who has shown the certificate of a connection."""
        return self._source.rules.find_certificate(certificate_names(context))

    def _identify(self, entry: Entry, row: Row, context: Context) -> tuple[Caller, ...]:
        """Return who makes a call.

        Raises:
            AccessRefused: when it is not known, or what it has shown is not valid.
        """
        shown = shown_by(context)
        if KEY in shown:
            caller = self._read_forwarded(entry, shown)
            self.require_round(caller, row)
            return (caller,)
        found = self._find(shown, context)
        if WORKER_TOKEN_KEY in shown:
            entry.worker = self._find_worker(shown[WORKER_TOKEN_KEY], row, entry)
            if entry.worker is None and not found:
                raise refusals.token_invalid("the worker token is not one of this coordinator's")
        return self._add_worker(found, entry.worker, row, context)

    def _find(self, shown: Mapping[str, str], context: Context) -> list[Caller]:
        """Return who makes a call, by its token and its certificate.

        Raises:
            AccessRefused: when the token is not valid.
        """
        found = [self.find_token(shown[TOKEN_KEY])] if TOKEN_KEY in shown else []
        return [*found, *self.identify_certificate(context)]

    def _read_forwarded(self, entry: Entry, shown: Mapping[str, str]) -> Caller:
        shard = shown.get(SHARD_KEY, "")
        known = self.identities.verify(shown[KEY], method=entry.call.method, shard=shard)
        if known is None:
            raise refusals.token_invalid(
                "the call is not signed by a coordinator of this store: compare their clocks"
            )
        caller, entry.call.peer = known
        entry.is_forwarded = True
        return caller

    def find_token(self, shown: str) -> Caller:
        """Return who has this `authorization`; raise AccessRefused when it is not valid."""
        scheme, _, token = shown.partition(" ")
        caller = self._source.rules.find_token(token.strip())
        if scheme.lower() != _SCHEME or caller is None:
            raise refusals.token_unknown(token)
        if caller.expires_ms is not None and caller.expires_ms <= _unix_ms():
            raise refusals.token_expired(caller)
        return caller

    def _find_worker(self, token: str, row: Row, entry: Entry) -> Caller | None:
        """Return the worker that shows a token; None: it is not valid, or not known to be.

        Raises:
            LimitExceeded: when the token may be forged, and the host has failed too often.
        """
        claim = None if self.worker_tokens is None else self.worker_tokens.read(token)
        if claim is None:
            return None
        if not (claim.is_signed or self.knows_worker(claim)):
            if not row.checks_worker:
                return None
            self._attempts.require(entry.call.host, self._clock_s())
            entry.is_claim = True
        jobs = (glob.escape(claim.job_id),)
        return Caller(
            *(f"worker of {claim.job_id}", (Role.WORKER,), Proof.WORKER_TOKEN, jobs),
            round=WorkerRound(claim.job_id, claim.run, claim.round),
        )

    def refuse(self, entry: Entry, refused: AccessRefused) -> None:
        """Note a refusal.

        Raises:
            LimitExceeded: when the host has failed too often.
        """
        if entry.is_revoked:
            assert entry.caller is not None
            self.audit.revoke(entry.call, entry.caller, refused.reason)
            return
        callers = () if entry.is_claim else refused.callers  # anyone can write a name into a token
        self.audit.refuse(entry.call, callers, refused.reason)
        if refused.is_unknown:
            self._attempts.use(entry.call.host, self._clock_s())

    def _note_end(self, entry: Entry, row: Row, outcome: str) -> None:
        callers = () if entry.caller is None else (entry.caller,)
        if outcome in (_NO_PROOF if entry.is_claim else _REFUSED) and not entry.is_forwarded:
            if entry.is_claim:  # as above
                callers = ()
            self.audit.refuse(entry.call, callers, outcome)
            if row.checks_worker:
                self._count_refused(entry)
        elif row.is_change and entry.caller is not None and not entry.is_forwarded:
            self.audit.change(entry.call, entry.caller, outcome)

    def _count_refused(self, entry: Entry) -> None:
        """Count a wrong token of a worker, which its servicer has refused already."""
        try:
            self._attempts.use(entry.call.host, self._clock_s())
        except LimitExceeded:
            return  # the log has it


def _outcome(error: BaseException, context: Context) -> str:
    """Return how a call has ended that an exception ends: as its status, if there is one yet."""
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED"  # it may have counted
    status = to_status(error)
    if status is not None:
        return _CODES.get(status.code, "UNKNOWN")
    if not isinstance(error, grpc.aio.AbortError):
        return "failed"
    code: Any = context.code()
    number = code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0)
    return _CODES.get(number, "UNKNOWN")


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
