"""Asks the coordinator about itself, with one call that is not repeated."""

from __future__ import annotations

import time
from typing import Any

import grpc
from msgspec.structs import replace

from rallypoint.cli.operator.doctor.facts import About, Caller, Endpoint, Refusal
from rallypoint.client.calls.coordinator import GET_COORDINATOR
from rallypoint.client.failures import read_failure
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.wire.access import Access
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import RELAYED_KEY, Credentials
from rallypoint.wire.resolved import resolve

CALL_S_MAX = 5.0
_MS = 1_000.0


def ask(access: Access, at: Endpoint, limit_s: float = CALL_S_MAX) -> About | Refusal:
    """Return what the coordinator says about itself, or how the call failed.

    Args:
        access: its files can be used.
        at: host:port.
        limit_s: longest connection, and longest call after it.
    """
    credentials = Credentials(access)
    with credentials.open_channel(resolve(str(at)), client_options()) as channel:
        call = channel.unary_unary(
            GET_COORDINATOR.path,
            request_serializer=GET_COORDINATOR.request.SerializeToString,
            response_deserializer=GET_COORDINATOR.response.FromString,
        )
        _connect(channel, limit_s)
        began_s = time.time()  # noqa: TID251  the wall clock is what is compared
        try:
            answer, ended = call.with_call(
                coordinator_pb2.GetCoordinatorRequest(),
                timeout=limit_s,
                metadata=credentials.metadata(),
            )
        except grpc.RpcError as error:
            return _refusal(error)
        ended_s = time.time()  # noqa: TID251
    about = read_answer(answer, began_s, ended_s)
    return replace(about, is_relayed=_is_relayed(ended))


def _is_relayed(call: Any) -> bool:
    """Return whether a call that has ended went through a relay."""
    return any(key == RELAYED_KEY for key, _ in call.trailing_metadata() or ())


def _connect(channel: grpc.Channel, limit_s: float) -> None:
    """Connect first, so that the call itself is short and shows the clock well."""
    try:
        grpc.channel_ready_future(channel).result(limit_s)
    except grpc.FutureTimeoutError:
        return  # the call says why


def _refusal(error: Any) -> Refusal:
    failure = read_failure(error)
    return Refusal(
        failure.code.name, failure.details.reason, failure.text, is_relayed=_is_relayed(error)
    )


def read_answer(
    answer: coordinator_pb2.GetCoordinatorResponse, began_s: float, ended_s: float
) -> About:
    """Return the facts of an answer; the times are Unix times of this host around the call."""
    one = answer.coordinator
    there_s = (one.started_at.ToMilliseconds() + one.uptime.ToMilliseconds()) / _MS
    return About(
        version=one.version,
        protocol_min=one.min_protocol_version,
        protocol_max=one.protocol_version,
        clock_ahead_s=there_s - (began_s + ended_s) / 2,
        clock_error_s=(ended_s - began_s) / 2,
        is_durable=one.durable,
        is_reattaching=one.reattaching,
        unserved_shards=sum(not shard.served for shard in one.shards),
        is_protected=answer.HasField("caller") or one.access.authenticates,
        caller=_read_caller(answer.caller, ended_s) if answer.HasField("caller") else None,
    )


def _read_caller(caller: coordinator_pb2.Caller, now_s: float) -> Caller:
    ends_s = caller.expires_at.ToMilliseconds() / _MS
    return Caller(
        name=caller.name,
        role=", ".join(_word(coordinator_pb2.AccessRole, role) for role in caller.roles),
        by=_word(coordinator_pb2.CallerProof, caller.proof),
        jobs=tuple(caller.jobs),
        ends_in_s=ends_s - now_s if caller.HasField("expires_at") else None,
    )


def _word(enum: Any, number: int) -> str:
    """Return the name of a value as people say it; a newer coordinator may have more."""
    if number not in enum.values():
        return str(number)
    name: str = enum.Name(number)
    for prefix in ("ACCESS_ROLE_", "CALLER_PROOF_"):
        name = name.removeprefix(prefix)
    return name.lower().replace("_", " ")
