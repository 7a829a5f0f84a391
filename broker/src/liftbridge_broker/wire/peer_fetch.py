"""Fetches of followers and their answers (`Fetch` and `FetchReply` of `internal/v1/peer.proto`).

The records of all partitions of an answer are the tail of its frame, one behind the other, so that
they are never copied through protobuf.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import LeaderEpoch, MetadataIndex, Offset, PartitionId
from liftbridge_proto.internal.v1 import peer_pb2 as pb

PARTITIONS_MAX: Final = 1_000_000
"""Partitions of one fetch."""


class FetchErrorCode(IntEnum):
    """Why a leader answers without records; the numbers travel."""

    NOT_LEADER = pb.FETCH_ERROR_NOT_LEADER
    FENCED_LEADER_EPOCH = pb.FETCH_ERROR_FENCED_LEADER_EPOCH
    UNKNOWN_LEADER_EPOCH = pb.FETCH_ERROR_UNKNOWN_LEADER_EPOCH
    STALE_REPLICA_EPOCH = pb.FETCH_ERROR_STALE_REPLICA_EPOCH
    OFFSET_OUT_OF_RANGE = pb.FETCH_ERROR_OFFSET_OUT_OF_RANGE
    UNKNOWN_PARTITION = pb.FETCH_ERROR_UNKNOWN_PARTITION
    NOT_REPLICA = pb.FETCH_ERROR_NOT_REPLICA
    CORRUPT = pb.FETCH_ERROR_CORRUPT
    RECOVERING = pb.FETCH_ERROR_RECOVERING


_ERRORS: Final[dict[FetchErrorCode, pb.FetchError]] = {
    FetchErrorCode.NOT_LEADER: pb.FETCH_ERROR_NOT_LEADER,
    FetchErrorCode.FENCED_LEADER_EPOCH: pb.FETCH_ERROR_FENCED_LEADER_EPOCH,
    FetchErrorCode.UNKNOWN_LEADER_EPOCH: pb.FETCH_ERROR_UNKNOWN_LEADER_EPOCH,
    FetchErrorCode.STALE_REPLICA_EPOCH: pb.FETCH_ERROR_STALE_REPLICA_EPOCH,
    FetchErrorCode.OFFSET_OUT_OF_RANGE: pb.FETCH_ERROR_OFFSET_OUT_OF_RANGE,
    FetchErrorCode.UNKNOWN_PARTITION: pb.FETCH_ERROR_UNKNOWN_PARTITION,
    FetchErrorCode.NOT_REPLICA: pb.FETCH_ERROR_NOT_REPLICA,
    FetchErrorCode.CORRUPT: pb.FETCH_ERROR_CORRUPT,
    FetchErrorCode.RECOVERING: pb.FETCH_ERROR_RECOVERING,
}


class FetchPosition(NamedTuple):
    """Position of a follower in one partition.

    Attributes:
        partition: Which one.
        replica_epoch: Session of the replica.
        leader_epoch: Epoch in which the follower believes the leader to lead.
        fetch_offset: First offset it wants.
        flushed_offset: First offset it has not on disk for sure.
        last_fetched_epoch: Leader epoch of its last record, `None` when it has none.
        log_start: First offset it holds.
    """

    partition: PartitionId
    replica_epoch: MetadataIndex
    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    flushed_offset: Offset
    last_fetched_epoch: LeaderEpoch | None
    log_start: Offset


class FetchBody(NamedTuple):
    """Records wanted by a follower.

    Attributes:
        session_id: Session, 0 for a new one.
        session_epoch: Number of this fetch in the session, 0 for a full one.
        leader_broker_epoch: Registration of the leader that is asked.
        partitions: Those that are new or whose position changed.
        forgotten: Those that are no longer wanted.
    """

    session_id: int
    session_epoch: int
    leader_broker_epoch: int
    partitions: tuple[FetchPosition, ...]
    forgotten: tuple[PartitionId, ...]


class FetchedHead(NamedTuple):
    """Answer for one partition; its records are in the tail.

    Attributes:
        partition: Which one.
        fetch_offset: Offset that was asked for.
        leader_epoch: Epoch in which the sender leads.
        high_watermark: First offset not committed.
        log_start: First offset the leader holds.
        error: Why there are no records.
        diverging: Leader epoch and end offset where the logs part, `None` when they agree.
        data_bytes: Length of its records in the tail.
    """

    partition: PartitionId
    fetch_offset: Offset
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start: Offset
    error: FetchErrorCode | None
    diverging: tuple[LeaderEpoch, Offset] | None
    data_bytes: int


class FetchReplyBody(NamedTuple):
    """Answer to a fetch.

    Attributes:
        session_id: Session, 0 when the leader keeps none.
        session_epoch: Number of the fetch that is answered.
        is_session_lost: The session is not known, so a full fetch is needed.
        partitions: Those with news, in the order of their records.
    """

    session_id: int
    session_epoch: int
    is_session_lost: bool
    partitions: tuple[FetchedHead, ...]


def records_of(body: FetchReplyBody, tail: bytes) -> Sequence[bytes]:
    """Records of each partition of an answer, in its order.

    Raises:
        WireError: The tail has another length than the heads say.
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
        )


def decode_fetch(message: pb.Fetch) -> FetchBody:
    """A fetch from a header.

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
    # The end of a log and what is flushed may lie before its start for a moment, never below 0.
    _require(min(found.fetch_offset, found.flushed_offset, found.log_start) >= 0)
    return FetchPosition(
        PartitionId(found.partition_id),
        MetadataIndex(found.replica_epoch),
        LeaderEpoch(found.leader_epoch),
        Offset(found.fetch_offset),
        Offset(found.flushed_offset),
        LeaderEpoch(found.last_fetched_epoch) if found.HasField("last_fetched_epoch") else None,
        Offset(found.log_start),
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
        )
        if head.error is not None:
            added.error = _ERRORS[head.error]
        if head.diverging is not None:
            added.diverging.SetInParent()
            added.diverging.leader_epoch, added.diverging.end_offset = head.diverging


def decode_fetch_reply(message: pb.FetchReply) -> FetchReplyBody:
    """The answer to a fetch from a header.

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
    )


def _error(number: int) -> FetchErrorCode | None:
    if number == pb.FETCH_ERROR_UNSPECIFIED:
        return None
    try:
        return FetchErrorCode(number)
    except ValueError as error:
        raise WireError(f"fetch reply: error {number}") from error


def _require(holds: bool) -> None:
    if not holds:
        raise WireError("fetch: a field out of bounds")
