"""Values of a fetch: a follower's positions and its leader's answers.

They are sent as is (`internal/v1/peer.proto`) and used by the cores of both sides, so no conversion
is needed. Offsets are exclusive ends.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import Instant, LeaderEpoch, MetadataIndex, Offset, PartitionId


class FetchError(IntEnum):
    """Reason for a reply without records; numbers as in `FetchError` of `peer.proto`."""

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
        partition: The partition.
        replica_epoch: Session of the replica.
        leader_epoch: Leader epoch known to the follower.
        fetch_offset: First offset to fetch, which is the log end offset of the follower.
        flushed_offset: First offset not certain to be on disk; 0 if only appends count.
        last_fetched_epoch: Newest leader epoch of its log, `None` if unknown.
        log_start: Log start offset of the follower.
        compacted_offset: Offset below which each key has only its newest record.
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
        leader_broker_epoch: Registration of the leader.
        partitions: Partitions that are new or whose position changed.
        forgotten: Partitions to remove from the session.
    """

    session_id: int
    session_epoch: int
    leader_broker_epoch: int
    partitions: tuple[FetchPosition, ...]
    forgotten: tuple[PartitionId, ...]


class FetchedHead(NamedTuple):
    """Answer for one partition, without its records.

    Attributes:
        partition: The partition.
        fetch_offset: Offset that was requested.
        leader_epoch: Leader epoch of the sender; 0 when it does not lead.
        high_watermark: First offset not committed.
        log_start: First offset the leader holds.
        error: Reason for the missing records.
        diverging: Leader epoch and end offset at which the logs diverge, `None` if they agree.
        data_bytes: Length of its records.
        compacted_offset: The least compacted offset of all replicas: tombstones below may be
            removed.
        dropped_offset: Offset below which the leader may lack tombstones, and the records they
            deleted.
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
        session_id: Session, 0 if the leader keeps no session.
        session_epoch: Number of the answered fetch.
        is_session_lost: The leader does not know the session, so a full fetch is needed.
        partitions: Partitions with news, in the order of their records.
    """

    session_id: int
    session_epoch: int
    is_session_lost: bool
    partitions: tuple[FetchedHead, ...]


class Accepted(NamedTuple):
    """The follower's log is a prefix of the leader's log; the leader recorded the position."""


class Diverging(NamedTuple):
    """The logs diverge: the follower truncates and fetches again (KIP-320, KIP-595).

    Attributes:
        leader_epoch: Largest epoch known to the leader that is not above the follower's last epoch.
        end_offset: First offset after that epoch.
    """

    leader_epoch: LeaderEpoch
    end_offset: Offset


class Refused(NamedTuple):
    """The fetch was not recorded; nothing changed."""

    error: FetchError


ACCEPTED: Final = Accepted()
FetchOutcome = Accepted | Diverging | Refused


@dataclass(slots=True)
class SessionClock:
    """Time of a follower's last fetch; shared by all partitions of a fetch session (KIP-227).

    A fetch confirms all positions sent before, so one value serves all of them.
    """

    last_fetch: Instant
