"""Values passed from the API and NATS into a partition: runs of messages and their ack sinks.

A run holds all messages of one loop turn for one partition from one caller, so objects are created
per run, never per message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, TypeVar

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.replication.publishers import PublisherStamp, StoredPiece
from liftbridge_broker.wire.acks import AckEncoder, AckPolicy

POLICY_LEADER: Final = AckPolicy.LEADER.value
POLICY_ALL: Final = AckPolicy.ALL.value
POLICY_NONE: Final = AckPolicy.NONE.value

Entry = TypeVar("Entry")


class Stored(NamedTuple):
    """Position at which a run was stored.

    Attributes:
        base_offset: Offset of its first record; later records follow without gaps, unless `pieces`
            give their positions.
        timestamp: Timestamp of its records, Unix nanoseconds.
        commit_ns: Wall clock when the ack was released.
        leader_epoch: Epoch under which it was appended.
        is_duplicate: Whether an earlier run of the same idempotent publisher stored it.
        pieces: Positions of an idempotent publisher's run that is stored in several pieces, because
            other records were stored between two attempts; else empty.
        acks: Builds acks for another stream of the queue group, which stored it; `None` when the
            requested stream stored it.
    """

    base_offset: Offset
    timestamp: int
    commit_ns: int
    leader_epoch: LeaderEpoch
    is_duplicate: bool
    pieces: tuple[StoredPiece, ...] = ()
    acks: AckEncoder | None = None


class AckSink(Protocol):
    """Receives the outcome of a run exactly once."""

    def acked(self, stored: Stored) -> None:
        """Confirm that every record of the run is stored as its ack policy requires."""
        ...

    def refused(self, error: LiftbridgeError) -> None:
        """Refuse the run: no record is stored, or, for `OutcomeUnknownError`, that is unknown."""
        ...


class PendingAck(NamedTuple):
    """A pending ack: its policy and its sink."""

    policy: int
    sink: AckSink


@dataclass(slots=True)
class PublishRun:
    """Messages of one caller for one partition, in order; all lists have the length of `values`.

    Attributes:
        values: Values of the messages.
        subject: Concrete NATS subject they were, or are, published to.
        path: Path of arrival, for metrics: `grpc`, `batch` or `nats`.
        pending_acks: Pending acks, due once the run is stored.
        keys: Keys, empty for none; `None` when no message has one.
        headers: User headers; `None` when no message has any.
        reply: NATS reply subject, empty for none.
        policy: Ack policy written into the envelope for other listeners.
        correlation_ids: UTF-8 correlation ids for the envelope; `None` when there are none.
        ack_inbox: The caller's own inbox for the envelope, empty for none.
        expected_offsets: Optimistic concurrency: expected offsets, -1 for any; `None` means 0.
        publisher: Stamp of an idempotent publisher; such a run is a batch of its own.
        offsets: Restore: offsets that the records must get, increasing.
        timestamps: Restore: timestamps of the records, not decreasing.
        subjects: Restore: subjects of the records, in place of `subject`.
        replies: Restore: reply subjects of the records, in place of `reply`.
    """

    values: list[bytes]
    subject: str
    path: str
    pending_acks: Sequence[PendingAck] = ()
    keys: list[bytes] | None = None
    headers: list[Mapping[str, bytes] | None] | None = None
    reply: str = ""
    policy: int = POLICY_LEADER
    correlation_ids: list[bytes] | None = None
    ack_inbox: str = ""
    expected_offsets: list[int] | None = None
    publisher: PublisherStamp | None = None
    offsets: Sequence[int] | None = None
    timestamps: list[int] | None = None
    subjects: list[str] | None = None
    replies: list[str] | None = None

    def refuse(self, error: LiftbridgeError) -> None:
        """Report to every waiting caller that nothing of this run is stored."""
        for ack in self.pending_acks:
            ack.sink.refused(error)

    @property
    def waits_for_all(self) -> bool:
        """Return whether any pending ack of the run has policy ALL."""
        return any(ack.policy == POLICY_ALL for ack in self.pending_acks)

    @property
    def size_bytes(self) -> int:
        """Bytes held by the run while it waits: values and keys."""
        keys = sum(map(len, self.keys)) if self.keys is not None else 0
        return sum(map(len, self.values)) + keys

    def part(self, start: int, end: int) -> "PublishRun":
        """Return messages `start` to `end`, exclusive, with the pending acks of the whole run."""
        publisher = self.publisher
        if publisher is not None:
            publisher = publisher._replace(first_sequence=publisher.first_sequence + start)
        return replace(
            self,
            values=self.values[start:end],
            keys=_part(self.keys, start, end),
            headers=_part(self.headers, start, end),
            correlation_ids=_part(self.correlation_ids, start, end),
            expected_offsets=_part(self.expected_offsets, start, end),
            publisher=publisher,
            offsets=self.offsets[start:end] if self.offsets is not None else None,
            timestamps=_part(self.timestamps, start, end),
            subjects=_part(self.subjects, start, end),
            replies=_part(self.replies, start, end),
        )


def _part(column: list[Entry] | None, start: int, end: int) -> list[Entry] | None:
    return column[start:end] if column is not None else None


def batch_ends(run: PublishRun, bytes_max: int) -> list[int]:
    """Return exclusive ends of the slices of a run that become one batch, or one record, each."""
    values, keys = run.values, run.keys
    if run.size_bytes <= bytes_max:
        return [len(values)]
    ends: list[int] = []
    size = 0
    for index, value in enumerate(values):
        length = len(value) + (len(keys[index]) if keys is not None else 0)
        if size and size + length > bytes_max:
            ends.append(index)
            size = 0
        size += length
    ends.append(len(values))
    return ends
