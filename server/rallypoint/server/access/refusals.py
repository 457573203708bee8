"""The statuses of calls that are refused because of who calls.

A text names what the caller has sent or may know: never what another caller may do.
"""

from __future__ import annotations

import grpc

from rallypoint.server.access.caller import Caller
from rallypoint.server.contract.calls import CallRefused
from rallypoint.server.contract.refusals import status_of
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.access import Role
from rallypoint.wire.errors import REASON_PREFIX
from rallypoint.wire.job_secret import SLURM_PREFIX


class AccessRefused(CallRefused):
    """A call is refused because of who calls."""

    def __init__(
        self,
        reason: details_pb2.RefusalReason.ValueType,
        problem: str,
        callers: tuple[Caller, ...] = (),
    ) -> None:
        """Keep how the call ends.

        Args:
            reason: why, for programs and for the log.
            problem: for the caller.
            callers: who has called, as far as is known.
        """
        super().__init__(status_of(reason, problem=problem))
        self.reason = details_pb2.RefusalReason.Name(reason).removeprefix(REASON_PREFIX)
        self.callers = callers

    @property
    def is_unknown(self) -> bool:
        """Return whether it is not known who calls."""
        unauthenticated: int = grpc.StatusCode.UNAUTHENTICATED.value[0]
        return bool(self.status.code == unauthenticated)


def token_missing(certificate: str = "") -> AccessRefused:
    """Return the refusal of a call that does not say who makes it.

    Args:
        certificate: the name in its certificate, which has no role; empty: there is none.
    """
    text = "this coordinator asks who calls: set --token-file or RALLYPOINT_TOKEN"
    if certificate:
        text = f"the certificate of {certificate!r} has no role here: set --token-file, too"
    return AccessRefused(details_pb2.REFUSAL_REASON_ACCESS_TOKEN_MISSING, text)


def token_invalid(text: str = "") -> AccessRefused:
    """Return the refusal of a token that no entry has; `text` says what else is wrong."""
    text = text or "the access token is not one of this coordinator's: check the token file"
    return AccessRefused(details_pb2.REFUSAL_REASON_ACCESS_TOKEN_INVALID, text)


def token_unknown(token: str) -> AccessRefused:
    """Return the refusal of a token that no entry has, with what its holder can do."""
    if token.startswith(SLURM_PREFIX):  # no one has set it: the agent has derived it
        return token_invalid("this coordinator is not of this Slurm job: set its RALLYPOINT_TOKEN")
    return token_invalid()


def token_expired(caller: Caller) -> AccessRefused:
    """Return the refusal of a token that was valid once."""
    text = f"the access token of {caller.name!r} has expired: replace it in the token file"
    return AccessRefused(details_pb2.REFUSAL_REASON_ACCESS_TOKEN_EXPIRED, text, (caller,))


def round_over(number: int) -> AccessRefused:
    """Return the refusal of a worker whose round has been over for too long; `number` is its."""
    text = f"the worker token of round {number} has expired: its round, or its run, is over"
    return AccessRefused(details_pb2.REFUSAL_REASON_ACCESS_TOKEN_EXPIRED, text)


def role_not_allowed(callers: tuple[Caller, ...], needed: tuple[Role, ...]) -> AccessRefused:
    """Return the refusal of a call that needs another role; each caller has shown its own."""
    shown = " and ".join(
        f"{caller.name!r} is {', '.join(role.value for role in caller.roles)}" for caller in callers
    )
    wanted = " or ".join(role.value for role in needed)
    need = f"this call needs the role {wanted}" if needed else "no role allows this call"
    reason = details_pb2.REFUSAL_REASON_ROLE_NOT_ALLOWED
    return AccessRefused(reason, f"{shown}: {need}", callers)


def job_not_allowed(callers: tuple[Caller, ...], job_id: str) -> AccessRefused:
    """Return the refusal of a call about a job that the callers are not allowed.

    Args:
        callers: all are bound to jobs.
        job_id: of the call; empty: all jobs.
    """
    names = " and ".join(f"{caller.name!r}" for caller in callers)
    patterns = ", ".join(pattern for caller in callers for pattern in caller.jobs)
    about = f"job {job_id!r}" if job_id else "all jobs"
    text = f"{names} may not call about {about}, only about {patterns}"
    return AccessRefused(details_pb2.REFUSAL_REASON_JOB_NOT_ALLOWED, text, callers)
