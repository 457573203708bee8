"""The coordinator: whether it is one, its version, its clock, and the role of this caller."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import grpc
from msgspec import Struct

from rallypoint.base.limits import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from rallypoint.cli.operator.doctor.findings import Finding, describe, ok, problem, warning
from rallypoint.cli.operator.doctor.network import Endpoint
from rallypoint.client.calls.coordinator import GET_COORDINATOR
from rallypoint.client.failures import Failure, read_failure
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.wire.access import TOKEN_VARIABLE, Access
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import RELAYED_KEY, Credentials
from rallypoint.wire.resolved import resolve

SERVICE, TOKEN, VERSION, CLOCK = "coordinator", "token", "version", "clock"
CALL_S_MAX = 5.0
CLOCK_OFF_S = 5.0
"""Beyond it, times in the logs of two hosts cannot be compared."""
CLOCK_WRONG_S = 300.0
"""Beyond it, new certificates and tokens count as not yet valid, or as over."""
TOKEN_ENDS_SOON_S = 7 * 86_400.0
_OTHERS = 0o077
_NEW_TOKEN = "the coordinator's operator makes another: rallypoint token new --name NAME"


class Answer(Struct, frozen=True):
    """What the coordinator says about itself, and the call that has brought it."""

    got: coordinator_pb2.GetCoordinatorResponse
    began_s: float
    """Unix time of this host before the call."""
    ended_s: float
    """Unix time of this host after it."""
    is_relayed: bool = False
    """A relay has passed the call on to it."""


def ask(access: Access, at: Endpoint, limit_s: float) -> Answer | Finding:
    """Return what the coordinator says about itself, or why the call failed. It is not repeated.

    Args:
        access: its files can be used.
        at: host:port.
        limit_s: longest connection, and longest call after it; not more than 5.
    """
    limit_s = min(limit_s, CALL_S_MAX)
    credentials = Credentials(access)
    with credentials.open_channel(resolve(str(at)), client_options()) as channel:
        call = channel.unary_unary(
            GET_COORDINATOR.path,
            request_serializer=GET_COORDINATOR.request.SerializeToString,
            response_deserializer=GET_COORDINATOR.response.FromString,
        )
        # The call itself is short then, and shows the clock well. Without a connection it says why.
        with suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(limit_s)
        began_s = time.time()  # noqa: TID251  the wall clock is what is compared
        try:
            answer, ended = call.with_call(
                coordinator_pb2.GetCoordinatorRequest(),
                timeout=limit_s,
                metadata=credentials.metadata(),
            )
        except grpc.RpcError as error:
            return check_refusal(read_failure(error), access, is_relayed=_is_relayed(error))
        ended_s = time.time()  # noqa: TID251
    return Answer(answer, began_s, ended_s, _is_relayed(ended))


def _is_relayed(call: Any) -> bool:
    """Return whether a call that has ended went through a relay."""
    return any(key == RELAYED_KEY for key, _ in call.trailing_metadata() or ())


def check_about(answer: Answer) -> Finding:
    """Judge the state of a coordinator that answers."""
    one = answer.got.coordinator
    if unserved := sum(not shard.served for shard in one.shards):
        text = f"{unserved} shards have no owner: calls about their jobs wait"
        advice = "start more coordinators on the same store, or look at the logs of those there are"
        return warning(SERVICE, text, advice)
    if one.reattaching:
        text = "it has just started, and waits for agents whose rounds already run"
        return warning(SERVICE, text, "wait a few seconds, then call again")
    kept = "keeps a journal" if one.durable else "keeps nothing when it ends"
    who = "it is a relay; the coordinator behind it" if answer.is_relayed else "it"
    return ok(SERVICE, f"{who} answers, and {kept}")


def check_refusal(failure: Failure, access: Access, *, is_relayed: bool = False) -> Finding:
    """Judge why a coordinator did not answer; `is_relayed`: a relay has passed that on."""
    status, text = failure.code.name, failure.text
    source = _token_source(access)
    match failure.details.reason or status:
        case "ACCESS_TOKEN_MISSING":
            advice = (
                "add --token-file FILE; the operator makes one: rallypoint token new --name NAME"
            )
            return problem(
                TOKEN, "the coordinator asks for a token, and there is none here", advice
            )
        case "ACCESS_TOKEN_INVALID":
            advice = f"check that it is for this coordinator; {_NEW_TOKEN}"
            return problem(TOKEN, f"the coordinator does not know the token of {source}", advice)
        case "ACCESS_TOKEN_EXPIRED":
            return problem(TOKEN, f"the token of {source} is over", _NEW_TOKEN)
        case "ROLE_NOT_ALLOWED" | "JOB_NOT_ALLOWED" | "PERMISSION_DENIED" | "UNAUTHENTICATED":
            return problem(TOKEN, f"the coordinator refuses the token: {text}", _NEW_TOKEN)
        case "UNIMPLEMENTED":
            what = "what listens speaks gRPC, but is not a coordinator, or a much older one"
            advice = "check the port of the coordinator: its log begins with it"
            return problem(SERVICE, what, advice)
        case "UNAVAILABLE" | "DEADLINE_EXCEEDED":
            advice = "look at the log of the coordinator; if it stands still, start it again"
            if is_relayed:
                advice = "it is a relay: run doctor on its host, for the coordinator behind it"
            return problem(SERVICE, f"no answer: {text}", advice)
        case _:
            what = f"it fails with {status}: {text}"
            return problem(SERVICE, what, "look at the log of the coordinator")


def check_caller(answer: Answer, access: Access, *, is_exposed: bool) -> list[Finding]:
    """Judge whom the coordinator takes this side for, and how the token is kept.

    Args:
        answer: of the coordinator.
        access: how this side connects.
        is_exposed: other hosts may reach the coordinator too.
    """
    findings = check_token_file(access)
    if answer.got.HasField("caller"):
        return [*findings, _judge_caller(answer.got.caller, answer.ended_s)]
    if answer.got.coordinator.access.authenticates:
        return [*findings, ok(TOKEN, "the coordinator accepts it")]
    if not is_exposed:
        return [*findings, ok(TOKEN, "the coordinator asks for none, on this host alone")]
    text = "the coordinator asks for none: anyone who reaches it can change jobs"
    advice = "start it with --auth FILE, or let only the nodes reach its port: docs/security.md"
    return [*findings, warning(TOKEN, text, advice)]


def _judge_caller(caller: coordinator_pb2.Caller, now_s: float) -> Finding:
    role = ", ".join(_word(coordinator_pb2.AccessRole, one) for one in caller.roles)
    by = _word(coordinator_pb2.CallerProof, caller.proof)
    jobs = f", for the jobs {', '.join(caller.jobs)}" if caller.jobs else ""
    text = f"the coordinator knows you by {by} as {caller.name!r}: {role}{jobs}"
    if caller.HasField("expires_at"):
        ends_in_s = caller.expires_at.ToMilliseconds() / 1000 - now_s
        text += f"; ends in {describe(max(ends_in_s, 0.0))}"
        if ends_in_s < TOKEN_ENDS_SOON_S:
            return warning(TOKEN, text, _NEW_TOKEN)
    return ok(TOKEN, text)


def _word(enum: Any, number: int) -> str:
    """Return the name of a value as people say it; a newer coordinator may have more."""
    if number not in enum.values():
        return str(number)
    name: str = enum.Name(number)
    name = name.removeprefix("ACCESS_ROLE_").removeprefix("CALLER_PROOF_")
    return name.lower().replace("_", " ")


def _token_source(access: Access) -> str:
    return access.token_file or (TOKEN_VARIABLE if access.token else "this token")


def check_token_file(access: Access) -> list[Finding]:
    """Judge who may read the token of this side."""
    mode = 0
    with suppress(OSError, ValueError):
        mode = os.stat(access.token_file).st_mode
    if not mode & _OTHERS:
        return []
    text = f"others may read {access.token_file} (mode {mode & 0o777:04o})"
    return [warning(TOKEN, text, f"keep it to yourself: chmod 600 {access.token_file}")]


def check_version(answer: Answer) -> Finding:
    """Judge whether both sides understand each other."""
    one, here = answer.got.coordinator, version("rallypoint")
    text = f"{here} here, {one.version} there"
    if one.protocol_version < PROTOCOL_VERSION_MIN:
        advice = "upgrade the coordinator first, then agents and clients"
        return problem(VERSION, f"{text}: the coordinator is too old", advice)
    if one.min_protocol_version > PROTOCOL_VERSION:
        advice = f"upgrade here: pip install rallypoint=={one.version}"
        return problem(VERSION, f"{text}: this host is too old", advice)
    shown = f"{here}, both sides"
    if one.version != here:
        shown = f"{text}, which understand each other"
    return ok(VERSION, f"{shown}; Python {platform.python_version()}, gRPC {version('grpcio')}")


def check_clock(answer: Answer) -> Finding:
    """Judge how far the clocks of both hosts differ. Sessions and leases do not depend on it."""
    one = answer.got.coordinator
    there_s = (one.started_at.ToMilliseconds() + one.uptime.ToMilliseconds()) / 1000
    ahead_s = there_s - (answer.began_s + answer.ended_s) / 2
    off_s = max(abs(ahead_s) - (answer.ended_s - answer.began_s) / 2, 0.0)
    if off_s <= CLOCK_OFF_S:
        return ok(CLOCK, f"both hosts agree within {describe(CLOCK_OFF_S)}")
    direction = "ahead of" if ahead_s > 0 else "behind"
    text = f"the coordinator's clock is {describe(off_s)} {direction} the one here"
    advice = "synchronize both hosts with NTP, then start the coordinator again: chronyc tracking"
    if off_s > CLOCK_WRONG_S:
        return problem(CLOCK, f"{text}: certificates and tokens may fail", advice)
    return warning(CLOCK, f"{text}: times in logs do not match", advice)
