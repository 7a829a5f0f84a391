"""Positions of a group in `__cursors`: calls that find and store them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from liftbridge_client import methods
from liftbridge_client.admin_model import PartitionName
from liftbridge_client.aio.bounds import fetch_bounds
from liftbridge_client.aio.cursors import CURSORS_STREAM
from liftbridge_client.core.group_positions import (
    CURSOR_PREFIX,
    by_place,
    first_offset,
    place_of,
)
from liftbridge_client.errors import LiftbridgeError, NotFoundError, RefusedError
from liftbridge_client.model import Start
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import groups_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session
    from liftbridge_client.core.membership import Membership

Position = groups_pb2.CommitPositionsRequest.Position


class Begin(NamedTuple):
    """Where a group continues in a partition.

    Attributes:
        next_offset: First offset to read.
        stored: Stored position, `None` for none.
        stream_id: Id of the stream.
    """

    next_offset: int
    stored: int | None
    stream_id: int


async def place_count(client: "Session") -> int:
    """Return the number of partitions of `__cursors`.

    Raises:
        RefusedError: The cluster keeps no cursors, so that groups have no positions; or this client
            may not see the stream that keeps them.
    """
    try:
        return len((await client.stream_info(CURSORS_STREAM)).partitions)
    except NotFoundError as error:
        refusal = RefusedError("this client knows no stream __cursors, which keeps positions")
        refusal.advice = (
            "Set cursors.stream.partitions on the brokers; with access control, allow the client "
            "to describe the stream __cursors."
        )
        raise refusal from error


async def fetch_position(client: "Session", group: str, partition: PartitionName) -> int | None:
    """Fetch the offset of the last message that a group has processed; `None` for none."""
    cursor_id = CURSOR_PREFIX + group
    place = place_of(cursor_id, partition, await place_count(client))
    response = await client.call(
        methods.FETCH_CURSOR,
        api_pb2.FetchCursorRequest(
            stream=partition.stream, partition=partition.partition, cursorId=cursor_id
        ),
        leader_of=(CURSORS_STREAM, place),
    )
    return None if response.offset < 0 else response.offset


async def fetch_begin(
    client: "Session", group: str, partition: PartitionName, start: Start, known_id: int
) -> "Begin":
    """Find where a group continues in a partition.

    Args:
        client: Session for the calls.
        group: The group.
        partition: The partition.
        start: Where to begin without a position.
        known_id: Id that the stream had before, 0 if unknown. When it has another one it was
            created again: the position is that of the former one, and everything in it is new.
    """
    stored = await fetch_position(client, group, partition)
    timestamp = start.timestamp if start.kind == "time" else None
    (bounds,) = await fetch_bounds(
        client, partition.stream, [partition.partition], timestamp=timestamp
    )
    is_new = known_id not in (0, bounds.stream_id)
    first = first_offset(None, Start.earliest(), bounds)
    if not is_new:
        first = first_offset(stored, start, bounds)
    return Begin(first, stored, bounds.stream_id)


async def store_positions(
    client: "Session", membership: "Membership", positions: Mapping[PartitionName, Position]
) -> tuple[Sequence[PartitionName], LiftbridgeError | None]:
    """Store positions of a member, at the leaders of their partitions of `__cursors`.

    The epochs are those of now: a partition that is lost and given back meanwhile is another claim,
    whose position these calls do not move.

    Returns:
        Partitions whose positions are stored, and the error of the first of the others.
    """
    header = membership.commit_request()
    calls = list(by_place(membership.group, positions, await place_count(client)))
    outcomes = await asyncio.gather(
        *(_store(client, header, positions, place, some) for place, some in calls)
    )
    stored = [
        partition
        for (_, some), error in zip(calls, outcomes, strict=True)
        if error is None
        for partition in some
    ]
    return stored, next((error for error in outcomes if error is not None), None)


async def _store(
    client: "Session",
    header: groups_pb2.CommitPositionsRequest,
    positions: Mapping[PartitionName, Position],
    place: int,
    some: Sequence[PartitionName],
) -> LiftbridgeError | None:
    request = groups_pb2.CommitPositionsRequest()
    request.CopyFrom(header)
    request.positions.extend(positions[one] for one in some)
    try:
        await client.call(methods.COMMIT_POSITIONS, request, leader_of=(CURSORS_STREAM, place))
    except LiftbridgeError as error:
        return error
    return None
