"""What all shards together are, as one coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rallypoint.base.limits import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from rallypoint.server.api.about.service import Start
from rallypoint.server.contract.calls import Context
from rallypoint.server.contract.routes import Route
from rallypoint.server.fleet.directory import Directory
from rallypoint.server.fleet.merging.parts import ShardCalls, is_unavailable
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.wire.durations import to_duration, to_timestamp


async def get_coordinator(
    parts: ShardCalls, route: Route, directory: Directory, start: Start, context: Context
) -> coordinator_pb2.GetCoordinatorResponse:
    """Return this coordinator, with what all shards have; it names those that do not answer.

    Raises:
        Exception: when a shard ends the call otherwise than by being unavailable, or all of them
            are.
    """
    request = coordinator_pb2.GetCoordinatorRequest()
    failures: list[Exception] = []

    async def ask(shard: int) -> coordinator_pb2.Coordinator | None:
        try:
            answer = await parts.ask(route, shard, request, context)
        except Exception as error:
            if not is_unavailable(error):
                raise
            failures.append(error)
            return None
        found: coordinator_pb2.Coordinator = answer.coordinator
        return found

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(shard)) for shard in range(parts.count)]
    if len(failures) == parts.count:
        raise failures[0]
    return coordinator_pb2.GetCoordinatorResponse(
        coordinator=_merge([task.result() for task in asked], directory, start)
    )


def _merge(
    found: Sequence[coordinator_pb2.Coordinator | None], directory: Directory, start: Start
) -> coordinator_pb2.Coordinator:
    merged = coordinator_pb2.Coordinator(
        coordinator_id=directory.coordinator_id,
        durable=True,
        min_protocol_version=PROTOCOL_VERSION_MIN,
        protocol_version=PROTOCOL_VERSION,
    )
    served = [one for one in found if one is not None]
    for one in served:
        counts = coordinator_pb2.CoordinatorCounts()
        for field in counts.DESCRIPTOR.fields:
            total = getattr(merged.counts, field.name) + getattr(one.counts, field.name)
            setattr(counts, field.name, total)
        is_reattaching = merged.reattaching or one.reattaching
        merged.MergeFrom(one)
        merged.counts.CopyFrom(counts)
        merged.reattaching = is_reattaching
        del merged.capabilities[:]
        merged.capabilities.extend(one.capabilities)
    merged.epoch = merged.revision = merged.last_event_sequence = 0
    merged.durable = all(one.durable for one in served)
    merged.started_at.CopyFrom(to_timestamp(start.unix_ms))
    merged.uptime.CopyFrom(to_duration(start.uptime_ms()))
    for number, coordinator in enumerate(found):
        merged.shards.add(
            number=number,
            owner=directory.owner_of(number) or "",
            served=coordinator is not None,
            epoch=0 if coordinator is None else coordinator.epoch,
        )
    return merged
