"""What the end of a stream means for the agent: it connects again, or ends for good."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import grpc

from rallypoint.agent.session.dismissal import Dismissed
from rallypoint.agent.session.reasons import plain_reason
from rallypoint.base.exit_codes import EXIT_DENIED, EXIT_FAILED, EXIT_USAGE
from rallypoint.v1 import error_details_pb2 as details_pb2

if TYPE_CHECKING:
    from rallypoint.wire.errors import Details

NO_COORDINATOR = "no rallypoint coordinator listens at"
"""How the text begins that ends with the address."""
RETRY_S_MAX = 60.0
"""Longest pause that a coordinator can ask for."""


class BrokenStream(Exception):
    """The stream ended."""

    def __init__(
        self,
        text: str,
        retry_s: float = 0.0,
        *,
        is_silent: bool = False,
        is_undecided: bool = False,
        is_run_ending: bool = False,
    ) -> None:
        """Keep what happened.

        Args:
            text: why.
            retry_s: how long the coordinator asks the agent to wait, in seconds.
            is_silent: the coordinator says nothing, although the connection stands.
            is_undecided: no coordinator can decide anything, and the text says why.
            is_run_ending: the run before has to end first.
        """
        super().__init__(text)
        self.retry_s = retry_s
        self.is_undecided = is_undecided
        self.is_run_ending = is_run_ending
        self.is_silent = is_silent


class Redirected(Exception):
    """Another coordinator owns the job."""

    def __init__(self, text: str, address: str, retry_s: float) -> None:
        """Keep the coordinator's words, the owner's `host:port`, and the pause it asks for."""
        super().__init__(text)
        self.address = address
        self.retry_s = retry_s


class Taken(Dismissed):
    """Another node has the name or rank of this one.

    That may be the one that this agent replaces: a moment later the coordinator knows more.
    """


class Misunderstood(Dismissed):
    """The coordinator refuses a message as invalid: one of the two has a bug, or is too old."""


class Denied(Dismissed):
    """The coordinator does not know this agent, or does not allow it this job."""


DENIALS = frozenset(
    {
        "ACCESS_TOKEN_MISSING",
        "ACCESS_TOKEN_INVALID",
        "ACCESS_TOKEN_EXPIRED",
        "ROLE_NOT_ALLOWED",
        "JOB_NOT_ALLOWED",
    }
)
"""Reasons of such a refusal."""
FINAL = {
    "SPEC_MISMATCH": EXIT_USAGE,
    "NODE_NAME_IN_USE": EXIT_USAGE,
    "NODE_RANK_IN_USE": EXIT_USAGE,
    "ADDRESS_MISMATCH": EXIT_USAGE,
    "PROGRAM_MISMATCH": EXIT_USAGE,
    "PROTOCOL_MISMATCH": EXIT_USAGE,
    "OLD_RUN": EXIT_FAILED,
    "FOREIGN_ROUND": EXIT_FAILED,
    "LIMIT_REACHED": EXIT_FAILED,
}
"""Reasons of refusals that another attempt cannot change, and the agent's exit code for each. A
refusal that asks for a pause is not final, whatever its reason."""
_TAKEN = ("NODE_NAME_IN_USE", "NODE_RANK_IN_USE")
"""Of these, only a second one is final."""


def read_ending(
    code: grpc.StatusCode,
    text: str,
    metadata: Iterable[tuple[str, str | bytes]] | None,
    address: str = "this address",
) -> Exception:
    """Return the exception that the status of a stream means for the agent.

    The reason decides. A status without one is from gRPC itself or from a proxy: its code decides.

    Args:
        code: of the status.
        text: of the status, for people.
        metadata: the call's trailing metadata, which carries the details.
        address: of the coordinator, for a text.

    Returns: `Dismissed` or what is derived from it, `Redirected` or `BrokenStream`.
    """
    if metadata:
        # Imported here: most agents never see a refusal.
        from rallypoint.wire.errors import unpack_details

        details = unpack_details(tuple(metadata))
        if details.reason:
            retry_s = min(max(0.0, (details.retry_ms or 0) / 1000), RETRY_S_MAX)
            return _judge(details, code, text, retry_s)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return Misunderstood(EXIT_USAGE, f"the coordinator refused: {text}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        # Another server or a proxy may answer while the coordinator is away.
        return Misunderstood(EXIT_USAGE, f"{NO_COORDINATOR} {address}")
    return BrokenStream(plain_reason(text, code))


def _judge(details: Details, code: grpc.StatusCode, text: str, retry_s: float) -> Exception:
    """Return what a refusal of a coordinator means, which asks for a pause of `retry_s`."""
    match details.reason:
        case "INVALID_FIELD":
            return Misunderstood(EXIT_USAGE, f"the coordinator refused: {text}")
        case "NOT_OWNER" if isinstance(details.own, details_pb2.NotOwner):
            return Redirected(text, details.own.address, retry_s)
        case "STORE_UNAVAILABLE":
            return BrokenStream(text, retry_s, is_undecided=True)
        case reason if reason in DENIALS:
            return Denied(EXIT_DENIED, f"the coordinator refused: {text}")
        case reason if reason in FINAL and details.retry_ms is None:
            kind = Taken if reason in _TAKEN else Dismissed
            return kind(FINAL[reason], text or "refused")
        case reason:
            is_run_ending = reason == "PREVIOUS_RUN_ENDING"
            return BrokenStream(plain_reason(text, code), retry_s, is_run_ending=is_run_ending)
