"""Records the requests and outcomes of clients as they happen, for the checkers.

A write is *acked*, definitely *refused*, or *unknown*; an unknown one may be stored later, once.
Values are unique and contain their writer and its write. Tombstones have no value, so a header
contains both. So every record that a reader sees identifies its write. Histories are kept for each
partition id, which a recreated stream does not share.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from liftbridge_broker.logformat.frames import Frame, decode_frame
from liftbridge_broker.model.ids import PartitionId
from liftbridge_testkit.batches import frame_bounds
from liftbridge_testkit.checker import Identity, decode, encode
from liftbridge_testkit.sim.coverage import Coverage

WRITE_HEADER: Final = "write"
"""Header of a tombstone with the identity of its write."""


class Outcome(Enum):
    """Outcome of a write as its writer knows it."""

    UNKNOWN = "unknown"
    ACKED = "acked"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Write:
    """One message of one publisher.

    Attributes:
        identity: Writer, and number of its message.
        partition: Its partition.
        name: Unique bytes: its value, or the header of a tombstone.
        key: Key, empty for none.
        policy: Ack policy (`POLICY_*`).
        expected_offset: Expected offset (optimistic concurrency); -1 for any offset.
        is_idempotent: Whether it has a producer id and sequence and may be sent again.
        is_tombstone: Whether it deletes its key.
        invoked_at: True time at which it was first sent.
        ended_at: True time at which the outcome was learned; -1 while unknown.
        outcome: Known outcome.
        offset: Offset at which it is stored, -1 while unknown.
        leader_epoch: Leader epoch in the ack.
        is_committed: Whether the ack guarantees that it is never lost.
    """

    identity: Identity
    partition: PartitionId
    name: bytes
    key: bytes
    policy: int
    expected_offset: int
    is_idempotent: bool
    is_tombstone: bool
    invoked_at: int
    ended_at: int = -1
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    leader_epoch: int = 0
    is_committed: bool = False

    @property
    def value(self) -> bytes:
        """Return the published value; a tombstone has none."""
        return b"" if self.is_tombstone else self.name

    @property
    def headers(self) -> dict[str, bytes] | None:
        """Return the published headers."""
        return {WRITE_HEADER: self.name} if self.is_tombstone else None


class Record(NamedTuple):
    """One record of a log as a reader receives it.

    Attributes:
        offset: Its offset.
        key: Key, empty for none.
        name: Value, or the content of the header of a tombstone.
        timestamp: Time by the leader's clock; 0 where it does not matter.
    """

    offset: int
    key: bytes
    name: bytes
    timestamp: int = 0


@dataclass(slots=True)
class Frames:
    """Records by the bytes of their frames: all replicas and readers get the same bytes."""

    _known: dict[bytes, Record] = field(default_factory=dict)

    def records(self, piece: bytes | memoryview) -> Iterator[Record]:
        """Yield the records of whole frames, in order."""
        known = self._known
        data = bytes(piece)
        for position, stop in frame_bounds(data):
            raw = data[position:stop]
            record = known.get(raw)
            if record is None:
                record = known[raw] = record_of(decode_frame(data, position, stop))
            yield record


def record_of(frame: Frame) -> Record:
    """Return the fields of a stored record that checkers use."""
    name = frame.value or dict(frame.headers).get(WRITE_HEADER, b"")
    return Record(int(frame.offset), bytes(frame.key), bytes(name), frame.timestamp)


@dataclass(slots=True)
class FinalLog:
    """A partition at the end of a run, or when a broker begins to lead it, read from one replica.

    Attributes:
        partition: Its id.
        start: First offset that retention left.
        end: High watermark.
        records: Records as readers receive them, in order.
        is_compacted: Whether older records of a key may be missing.
    """

    partition: PartitionId
    start: int
    end: int
    records: list[Record]
    is_compacted: bool


class Checker:
    """Receives all events in order; raises `BrokenInvariantError` for a broken promise."""

    def on_invoke(self, write: Write) -> None:
        """Handle a write that is about to be sent for the first time."""

    def on_ack(self, write: Write) -> None:
        """Handle an ack with the offset of a write."""

    def on_refused(self, write: Write) -> None:
        """Handle a definite refusal of a write."""

    def on_seen(self, partition: PartitionId, reader: str, record: Record, log_start: int) -> None:
        """Handle a record delivered from a log that began at `log_start` at the time."""

    def on_loss(self, partition: PartitionId, end: int) -> None:
        """Handle that a log may end at `end`: records that are no longer promised may be lost."""

    def on_leader(self, log: FinalLog) -> None:
        """Handle a replica with this log that begins to serve as the leader."""

    def at_end(self, log: FinalLog) -> None:
        """Handle the end of the run, after the partition has settled."""


@dataclass(slots=True)
class History:
    """All notes of clients in a run.

    Attributes:
        writes: Writes by identity.
        checkers: Checkers, called for each event.
        next_sequences: Number of the next message, by publisher.
        frames: Decoder of log contents.
    """

    coverage: Coverage
    writes: dict[Identity, Write] = field(default_factory=dict)
    checkers: list[Checker] = field(default_factory=list)
    next_sequences: dict[int, int] = field(default_factory=dict)
    frames: Frames = field(default_factory=Frames)
    _tombstones: dict[tuple[PartitionId, bytes], list[Write]] = field(default_factory=dict)

    def new_publisher(self) -> int:
        """Return a publisher number that is unique in this run."""
        number = len(self.next_sequences)
        self.next_sequences[number] = 0
        return number

    def invoke(
        self,
        publisher: int,
        partition: PartitionId,
        now: int,
        *,
        policy: int,
        size: int = 64,
        key: bytes = b"",
        expected_offset: int = -1,
        is_idempotent: bool = False,
        is_tombstone: bool = False,
    ) -> Write:
        """Note a write before it is sent."""
        assert key or not is_tombstone
        sequence = self.next_sequences[publisher]
        self.next_sequences[publisher] = sequence + 1
        identity = Identity(publisher, sequence)
        write = Write(
            identity,
            partition,
            encode(identity, size),
            key,
            policy,
            expected_offset,
            is_idempotent,
            is_tombstone,
            now,
        )
        self.writes[identity] = write
        if is_tombstone:
            self._tombstones.setdefault((partition, key), []).append(write)
        for checker in self.checkers:
            checker.on_invoke(write)
        return write

    def acked(
        self, write: Write, now: int, *, offset: int, leader_epoch: int, is_committed: bool
    ) -> None:
        """Note an ack."""
        assert write.outcome is Outcome.UNKNOWN
        write.outcome, write.ended_at = Outcome.ACKED, now
        write.offset, write.leader_epoch = offset, leader_epoch
        write.is_committed = is_committed
        self.coverage.count("client", "acked record")
        for checker in self.checkers:
            checker.on_ack(write)

    def refused(self, write: Write, now: int) -> None:
        """Note a definite refusal."""
        assert write.outcome is Outcome.UNKNOWN
        write.outcome, write.ended_at = Outcome.REFUSED, now
        self.coverage.count("client", "refused record")
        for checker in self.checkers:
            checker.on_refused(write)

    def unknown(self, write: Write) -> None:
        """Note that the writer gave up: the outcome of the write stays unknown."""
        assert write.outcome is Outcome.UNKNOWN
        self.coverage.count("client", "unknown outcome")

    def seen(self, partition: PartitionId, reader: str, record: Record, log_start: int = 0) -> None:
        """Note a delivered record; `log_start` is the start of its log at the time."""
        self.coverage.count("client", "delivered record")
        for checker in self.checkers:
            checker.on_seen(partition, reader, record, log_start)

    def may_lose(self, partition: PartitionId, end: int) -> None:
        """Allow the loss of all records from `end` on."""
        for checker in self.checkers:
            checker.on_loss(partition, end)

    def check_end(self, log: FinalLog) -> None:
        """Check a partition's last state against all notes."""
        for checker in self.checkers:
            checker.at_end(log)

    def check_leader(self, log: FinalLog) -> None:
        """Check the log of a new leader against all notes."""
        for checker in self.checkers:
            checker.on_leader(log)

    def find(self, record: Record) -> Write | None:
        """Return the write of a record; `None` when there was none."""
        identity = decode(record.name)
        return None if identity is None else self.writes.get(identity)

    def may_be_deleted(self, partition: PartitionId, key: bytes, offset: int) -> bool:
        """Return whether compaction may have removed a record and the tombstone that hid it.

        The tombstone is the record itself or follows it, or its offset is unknown.
        """
        return any(
            one.offset >= offset or (one.offset < 0 and one.outcome is not Outcome.REFUSED)
            for one in self._tombstones.get((partition, key), [])
        )
