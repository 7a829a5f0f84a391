"""A store over files in memory, with a manual clock and a record of all events."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from liftbridge_broker.logformat.batch import read_header, seal
from liftbridge_broker.logformat.frames import decode_frame, iter_frames
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
    PartitionNumber,
    PublisherId,
    StreamId,
    StreamName,
    number_of,
    partition_id,
)
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.storage.cleaning.compaction import (
    CompactionJob,
    CompactionResult,
    Steps,
    SubmitCompaction,
    compact,
    encode_result,
)
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.storage.flush import Flushed
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.start import open_store
from liftbridge_broker.storage.store import LogStore, StoreOptions
from liftbridge_testkit.memory_files import MemoryFiles

NO_LIMITS = SpaceLimits(reserve_bytes=0, free_bytes_min=0)
IDENTITY = Identity("data-dir-1", BrokerId("broker-1"))
START = Instant(1_000)
START_WALL_NS = 1_700_000_000_000_000_000


def key_of(stream: int, number: int = 0) -> PartitionId:
    """Return the partition id of a stream by its id."""
    return partition_id(StreamId(stream), PartitionNumber(number))


def batch_of(
    partition: PartitionId,
    base_offset: int,
    values: Sequence[bytes],
    *,
    keys: Sequence[bytes] | None = None,
    leader_epoch: int = 1,
    timestamp: int = START_WALL_NS,
    publisher: tuple[int, int, int] = (0, 0, 0),
) -> bytes:
    """Return a sealed batch as a leader makes it, with the given producer state."""
    encoder = RecordEncoder("stream", number_of(partition))
    return seal(
        frames=encoder.encode(
            base_offset=base_offset,
            timestamp=timestamp,
            subject="subject",
            reply="",
            values=values,
            keys=keys,
        ),
        partition_id=partition,
        leader_epoch=LeaderEpoch(leader_epoch),
        base_offset=Offset(base_offset),
        last_offset=Offset(base_offset + len(values) - 1),
        count=len(values),
        first_timestamp=timestamp,
        largest_timestamp=timestamp,
        publisher_id=PublisherId(publisher[0]),
        publisher_epoch=publisher[1],
        first_sequence=publisher[2],
    )


class CompactedAside:
    """Compacts on request and holds back the answers, as a slow helper process does.

    Attributes:
        done: Answers for the store.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.done: deque[FileEvent] = deque()

    def submit(self, token: Token, job: CompactionJob) -> None:
        """Implement the port: compact, and hold back the answer."""
        self.done.append(FileEvent(token, encode_result(_finished(compact(self._files, job)))))


def _finished(steps: Steps) -> CompactionResult:
    """Run all steps. Return the answer."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: CompactionResult = stop.value
            return result


@dataclass
class StoreBed:
    """Owner of one store at a time over one set of files.

    Attributes:
        files: The disk, which outlives stores.
        now: Monotonic nanoseconds.
        transitions: Reported transitions, in order.
        flushed: All `Flushed` so far.
        failures: Reasons given to `on_failed`.
        runner: Compacts elsewhere; `None` lets the store do it.
    """

    files: MemoryFiles = field(default_factory=MemoryFiles)
    options: StoreOptions = field(default_factory=lambda: StoreOptions(space=NO_LIMITS))
    now: Instant = START
    transitions: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    flushed: list[Flushed] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    runner: SubmitCompaction | None = None
    _token: int = 0

    @property
    def wall_ns(self) -> int:
        """Return Unix nanoseconds, in step with `now`."""
        return START_WALL_NS + self.now

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Implement `Observer.transition`."""
        self.transitions.append((kind, fields))

    def told(self, kind: str) -> list[Mapping[str, object]]:
        """Return the fields of the transitions of one kind."""
        return [fields for told, fields in self.transitions if told == kind]

    def new_token(self) -> Token:
        """Return an unused token."""
        self._token += 1
        return Token(self._token)

    def open(self) -> LogStore:
        """Open a store on the contents of the disk, without logs."""
        self.store = open_store(
            self.files,
            IDENTITY,
            self.options,
            observer=self,
            new_token=self.new_token,
            now=self.now,
            wall_ns=self.wall_ns,
            runner=self.runner,
        )
        self.store.disk.on_failed = self.failures.append
        return self.store

    def start(self, logs: Mapping[PartitionId, StreamOptions]) -> LogStore:
        """Open a store and the logs of partitions, in a session and ready for appends."""
        store = self.open()
        for partition, options in logs.items():
            store.open(partition, StreamName("stream"), options, self.now)
        store.begin(MetadataIndex(0), self.now)
        store.begin_session(MetadataIndex(0), self.now)
        return store

    def log(self, partition: PartitionId) -> PartitionLog:
        """Return the open log of a partition."""
        log = self.store.log(partition)
        assert log is not None
        return log

    def append(
        self,
        partition: PartitionId,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes] | None = None,
        leader_epoch: int = 1,
    ) -> Offset:
        """Append a batch and notify the store. Return the new end of the log."""
        log = self.log(partition)
        batch = batch_of(
            partition,
            log.log_end_offset,
            values,
            keys=keys,
            leader_epoch=leader_epoch,
            timestamp=self.wall_ns,
        )
        log.append(batch, read_header(batch, 0), self.wall_ns)
        self.store.note_append(partition, self.now)
        return log.log_end_offset

    def commit(self, partition: PartitionId) -> None:
        """Commit the whole log, as a single replica without waiting does."""
        log = self.log(partition)
        log.high_watermark = log.log_end_offset

    def pump(self, limit: int | None = None) -> list[Flushed]:
        """Complete submitted calls and those that they cause. Return what became durable."""
        flushed: list[Flushed] = []
        while events := self.files.calls.pump(limit):
            for event in events:
                flushed += self.store.on_file_event(event, self.now)
            if limit is not None:
                break
        self.flushed += flushed
        return flushed

    def advance(self, duration_ns: int) -> None:
        """Advance the time, with every deadline on the way."""
        until = Instant(self.now + duration_ns)
        while (deadline := self.store.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.store.on_timer(self.now, self.wall_ns)
            self.pump()
        self.now = until


def values_in(log: PartitionLog, end: Offset | None = None) -> dict[int, bytes]:
    """Return the values of all records up to the end, by offset, as a subscriber reads them."""
    limit = log.log_end_offset if end is None else end
    reader = log.reader(log.log_start_offset)
    found: dict[int, bytes] = {}
    while True:
        result = reader.read(1 << 20, limit)
        if not result.slices:
            break
        for piece in result.slices:
            for position, stop, offset in iter_frames(piece, 0, len(piece)):
                assert offset not in found
                found[offset] = decode_frame(piece, position, stop).value
    reader.close()
    return found
