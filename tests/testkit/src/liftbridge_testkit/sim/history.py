"""Records the requests and outcomes of clients as they happen, for the checkers.

A write is *acked*, definitely *refused*, or *unknown*; an unknown one may be stored later, once.
Values are unique and name their writer and its write, and so does a header of
tombstones, which have no value: what a reader sees names its write. Histories are kept for each
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
"""Header of a tombstone that tells which write it is."""


class Outcome(Enum):
    """Knowledge of the writer about a write."""

    UNKNOWN = "unknown"
    ACKED = "acked"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Write:
    """One message of one publisher.

    Attributes:
        identity: Writer, and number of its message.
        partition: Its partition.
        name: Bytes that no other write has: its value, or the header of a tombstone.
        key: Key, empty for none.
        policy: Ack policy (`POLICY_*`).
        expected_offset: Optimistic concurrency; -1 for any offset.
        is_idempotent: Whether it carries a publisher's stamp and may be sent again.
        is_tombstone: Whether it deletes its key.
        invoked_at: True time it was sent first.
        ended_at: True time the outcome was learned; -1 while unknown.
        outcome: Known outcome.
        offset: Offset at which it is stored, -1 while unknown.
        leader_epoch: Epoch told by the ack.
        is_committed: Whether the ack means that it is never lost.
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
    """One record of a log as a reader gets it.

    Attributes:
        offset: Its offset.
        key: Key, empty for none.
        name: Value, or what the header of a tombstone says.
        timestamp: Time by the leader's clock; 0 where it does not matter.
    """

    offset: int
    key: bytes
    name: bytes
    timestamp: int = 0


@dataclass(slots=True)
class Frames:
    """Records by the bytes that they came as: all replicas and readers get the same ones."""

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
        records: Records as readers get them, in order.
        is_compacted: Whether older records of a key may be missing.
    """

    partition: PartitionId
    start: int
    end: int
    records: list[Record]
    is_compacted: bool


class Checker:
    """Told of everything in order; raises `BrokenInvariantError` for what must not be."""

    def on_invoke(self, write: Write) -> None:
        """A write is about to be sent for the first time."""

    def on_ack(self, write: Write) -> None:
        """The writer learned where it is stored."""

    def on_refused(self, write: Write) -> None:
        """The writer learned that it is not stored."""

    def on_seen(self, partition: PartitionId, reader: str, record: Record, log_start: int) -> None:
        """A subscription delivered a record of a log that began at `log_start` then."""

    def on_loss(self, partition: PartitionId, end: int) -> None:
        """Note that a log may end at `end`: records that were promised no more may be gone."""

    def on_leader(self, log: FinalLog) -> None:
        """A replica with this log begins to serve as the leader."""

    def at_end(self, log: FinalLog) -> None:
        """The run is over and the partition has settled."""


@dataclass(slots=True)
class History:
    """All that clients noted in a run.

    Attributes:
        writes: Writes by identity.
        checkers: Told of everything.
        next_sequences: Number of the next message, by publisher.
        frames: Decodes what logs hold.
    """

    coverage: Coverage
    writes: dict[Identity, Write] = field(default_factory=dict)
    checkers: list[Checker] = field(default_factory=list)
    next_sequences: dict[int, int] = field(default_factory=dict)
    frames: Frames = field(default_factory=Frames)
    _tombstones: dict[tuple[PartitionId, bytes], list[Write]] = field(default_factory=dict)

    def new_publisher(self) -> int:
        """Return the number of a publisher that no other one had in this run."""
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
        """The writer gave up: the write stays open for ever."""
        assert write.outcome is Outcome.UNKNOWN
        self.coverage.count("client", "unknown outcome")

    def seen(self, partition: PartitionId, reader: str, record: Record, log_start: int = 0) -> None:
        """Note a delivered record; `log_start` is where the log that it came from began then."""
        self.coverage.count("client", "delivered record")
        for checker in self.checkers:
            checker.on_seen(partition, reader, record, log_start)

    def may_lose(self, partition: PartitionId, end: int) -> None:
        """The promise allows everything from `end` on to be gone."""
        for checker in self.checkers:
            checker.on_loss(partition, end)

    def check_end(self, log: FinalLog) -> None:
        """Hold a partition's last state against everything noted."""
        for checker in self.checkers:
            checker.at_end(log)

    def check_leader(self, log: FinalLog) -> None:
        """Hold what a leader begins with against everything noted."""
        for checker in self.checkers:
            checker.on_leader(log)

    def find(self, record: Record) -> Write | None:
        """Return the write of a record; `None` when there was none."""
        identity = decode(record.name)
        return None if identity is None else self.writes.get(identity)

    def may_be_deleted(self, partition: PartitionId, key: bytes, offset: int) -> bool:
        """Return whether compaction may have taken a record and the tombstone that hid it.

        The tombstone is the record itself or comes after it, or its place is unknown.
        """
        return any(
            one.offset >= offset or (one.offset < 0 and one.outcome is not Outcome.REFUSED)
            for one in self._tombstones.get((partition, key), [])
        )
