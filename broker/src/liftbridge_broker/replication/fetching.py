"""Values of a fetch: what a follower tells of its log and what its leader answers.

They are what travels (`internal/v1/peer.proto`) and what the cores of both sides work with, so that
nothing is converted on the way. Offsets are exclusive ends.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import LeaderEpoch, MetadataIndex, Offset, PartitionId


class FetchError(IntEnum):
    """Why a leader answers without records; the numbers travel (`FetchError` of `peer.proto`)."""

    NOT_LEADER = 1
    FENCED_LEADER_EPOCH = 2
    UNKNOWN_LEADER_EPOCH = 3
    STALE_REPLICA_EPOCH = 4
    OFFSET_OUT_OF_RANGE = 5
    UNKNOWN_PARTITION = 6
    NOT_REPLICA = 7
    CORRUPT = 8
    RECOVERING = 9


class FetchPosition(NamedTuple):
    """Position of a follower in one partition.

    Attributes:
        partition: Which one.
        replica_epoch: Session of the replica.
        leader_epoch: Epoch in which the follower believes the leader to lead.
        fetch_offset: First offset it wants, the end of its log.
        flushed_offset: First offset it has not on disk for sure; 0 while that does not count.
        last_fetched_epoch: Newest leader epoch of its log, `None` when it knows none.
        log_start: First offset it holds.
        compacted_offset: Offset up to which no key has an older record beside its newest one.
    """

    partition: PartitionId
    replica_epoch: MetadataIndex
    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    flushed_offset: Offset
    last_fetched_epoch: LeaderEpoch | None
    log_start: Offset
    compacted_offset: Offset = Offset(0)


class FetchBody(NamedTuple):
    """A fetch of one follower for all partitions that one broker leads (KIP-227).

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
    """Answer for one partition, without its records.

    Attributes:
        partition: Which one.
        fetch_offset: Offset that was asked for.
        leader_epoch: Epoch in which the sender leads; 0 when it does not.
        high_watermark: First offset not committed.
        log_start: First offset the leader holds.
        error: Why there are no records.
        diverging: Leader epoch and end offset where the logs part, `None` when they agree.
        data_bytes: Length of its records.
        compacted_offset: The least compacted offset of all replicas: tombstones below may go.
        dropped_offset: Offset below which the leader may lack tombstones, and what they hid.
    """

    partition: PartitionId
    fetch_offset: Offset
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start: Offset
    error: FetchError | None
    diverging: tuple[LeaderEpoch, Offset] | None
    data_bytes: int
    compacted_offset: Offset = Offset(0)
    dropped_offset: Offset = Offset(0)


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


class Accepted(NamedTuple):
    """The position is a prefix of the leader's log; it was taken down."""


class Diverging(NamedTuple):
    """The logs part: the follower truncates and asks again (KIP-320, KIP-595).

    Attributes:
        leader_epoch: Largest epoch the leader knows that is not above the follower's last one.
        end_offset: First offset behind that epoch.
    """

    leader_epoch: LeaderEpoch
    end_offset: Offset


class Refused(NamedTuple):
    """The fetch was not taken down; nothing changed."""

    error: FetchError


ACCEPTED: Final = Accepted()
FetchOutcome = Accepted | Diverging | Refused
