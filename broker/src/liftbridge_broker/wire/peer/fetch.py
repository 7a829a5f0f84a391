"""Fetches of followers and their answers (`Fetch` and `FetchReply` of `internal/v1/peer.proto`).

The records of all partitions of an answer are concatenated in the tail of its frame, so that they
are never copied through protobuf.
"""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.fetching import (
    FetchBody,
    FetchedHead,
    FetchError,
    FetchPosition,
    FetchReplyBody,
)
from liftbridge_broker.model.ids import LeaderEpoch, MetadataIndex, Offset, PartitionId
from liftbridge_proto.internal.v1 import peer_pb2 as pb

PARTITIONS_MAX: Final = 1_000_000
"""Partitions of one fetch."""


_ERRORS: Final[dict[FetchError, pb.FetchError]] = {
    FetchError.NOT_LEADER: pb.FETCH_ERROR_NOT_LEADER,
    FetchError.FENCED_LEADER_EPOCH: pb.FETCH_ERROR_FENCED_LEADER_EPOCH,
    FetchError.UNKNOWN_LEADER_EPOCH: pb.FETCH_ERROR_UNKNOWN_LEADER_EPOCH,
    FetchError.STALE_REPLICA_EPOCH: pb.FETCH_ERROR_STALE_REPLICA_EPOCH,
    FetchError.OFFSET_OUT_OF_RANGE: pb.FETCH_ERROR_OFFSET_OUT_OF_RANGE,
    FetchError.UNKNOWN_PARTITION: pb.FETCH_ERROR_UNKNOWN_PARTITION,
    FetchError.NOT_REPLICA: pb.FETCH_ERROR_NOT_REPLICA,
    FetchError.CORRUPT: pb.FETCH_ERROR_CORRUPT,
    FetchError.RECOVERING: pb.FETCH_ERROR_RECOVERING,
}


def records_of(body: FetchReplyBody, tail: bytes) -> Sequence[bytes]:
    """Return the records of each partition of an answer, in its order.

    Raises:
        WireError: The length of the tail differs from the sum in the heads.
    """
    if sum(head.data_bytes for head in body.partitions) != len(tail):
        raise WireError(f"fetch reply: a tail of {len(tail)} bytes")
    pieces: list[bytes] = []
    position = 0
    for head in body.partitions:
        end = position + head.data_bytes
        pieces.append(tail[position:end])
        position = end
    return pieces


def encode_fetch(target: pb.Fetch, body: FetchBody) -> None:
    """Write a fetch into a header."""
    target.SetInParent()
    target.session_id = body.session_id
    target.session_epoch = body.session_epoch
    target.leader_broker_epoch = body.leader_broker_epoch
    target.forgotten.extend(body.forgotten)
    add = target.partitions.add
    for partition in body.partitions:
        add(
            partition_id=partition.partition,
            replica_epoch=partition.replica_epoch,
            leader_epoch=partition.leader_epoch,
            fetch_offset=partition.fetch_offset,
            flushed_offset=partition.flushed_offset,
            last_fetched_epoch=partition.last_fetched_epoch,
            log_start=partition.log_start,
            compacted_offset=partition.compacted_offset,
        )


def decode_fetch(message: pb.Fetch) -> FetchBody:
    """Read a fetch from a header.

    Raises:
        WireError: A field breaks its bounds.
    """
    _require(len(message.partitions) + len(message.forgotten) <= PARTITIONS_MAX)
    return FetchBody(
        message.session_id,
        message.session_epoch,
        message.leader_broker_epoch,
        tuple(_position(found) for found in message.partitions),
        tuple(PartitionId(found) for found in message.forgotten),
    )


def _position(found: pb.Fetch.Partition) -> FetchPosition:
    # The end of a log and its flushed offset may be before its start briefly, never below 0.
    _require(min(found.fetch_offset, found.flushed_offset, found.log_start) >= 0)
    _require(found.compacted_offset >= 0)
    return FetchPosition(
        PartitionId(found.partition_id),
        MetadataIndex(found.replica_epoch),
        LeaderEpoch(found.leader_epoch),
        Offset(found.fetch_offset),
        Offset(found.flushed_offset),
        LeaderEpoch(found.last_fetched_epoch) if found.HasField("last_fetched_epoch") else None,
        Offset(found.log_start),
        Offset(found.compacted_offset),
    )


def encode_fetch_reply(target: pb.FetchReply, body: FetchReplyBody) -> None:
    """Write the answer to a fetch into a header."""
    target.SetInParent()
    target.session_id = body.session_id
    target.session_epoch = body.session_epoch
    target.is_session_lost = body.is_session_lost
    add = target.partitions.add
    for head in body.partitions:
        added = add(
            partition_id=head.partition,
            fetch_offset=head.fetch_offset,
            leader_epoch=head.leader_epoch,
            high_watermark=head.high_watermark,
            log_start=head.log_start,
            data_bytes=head.data_bytes,
            compacted_offset=head.compacted_offset,
            dropped_offset=head.dropped_offset,
        )
        if head.error is not None:
            added.error = _ERRORS[head.error]
        if head.diverging is not None:
            added.diverging.SetInParent()
            added.diverging.leader_epoch, added.diverging.end_offset = head.diverging


def decode_fetch_reply(message: pb.FetchReply) -> FetchReplyBody:
    """Read the answer to a fetch from a header.

    Raises:
        WireError: A field breaks its bounds.
    """
    _require(len(message.partitions) <= PARTITIONS_MAX)
    return FetchReplyBody(
        message.session_id,
        message.session_epoch,
        message.is_session_lost,
        tuple(_head(found) for found in message.partitions),
    )


def _head(found: pb.FetchReply.Partition) -> FetchedHead:
    _require(min(found.fetch_offset, found.high_watermark, found.log_start) >= 0)
    _require(min(found.compacted_offset, found.dropped_offset) >= 0)
    diverging = None
    if found.HasField("diverging"):
        _require(found.diverging.end_offset >= 0)
        epoch = LeaderEpoch(found.diverging.leader_epoch)
        diverging = (epoch, Offset(found.diverging.end_offset))
    return FetchedHead(
        PartitionId(found.partition_id),
        Offset(found.fetch_offset),
        LeaderEpoch(found.leader_epoch),
        Offset(found.high_watermark),
        Offset(found.log_start),
        _error(found.error),
        diverging,
        found.data_bytes,
        Offset(found.compacted_offset),
        Offset(found.dropped_offset),
    )


def _error(number: int) -> FetchError | None:
    if number == pb.FETCH_ERROR_UNSPECIFIED:
        return None
    try:
        return FetchError(number)
    except ValueError as error:
        raise WireError(f"fetch reply: error {number}") from error


def _require(holds: bool) -> None:
    if not holds:
        raise WireError("fetch: a field out of bounds")
